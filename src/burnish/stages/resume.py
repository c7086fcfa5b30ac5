"""`burnish resume`, `burnish checkpoints`, `burnish verify`: going on, and what there is to go on from."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from burnish.checkpoints import Checkpoints
from burnish.config import RewardModelConfig, SFTConfig, TrainConfig
from burnish.config.files import apply_overrides, start_paths_at
from burnish.config.model_config import ModelConfig
from burnish.errors import InputError, NoCheckpointError
from burnish.runs import PIPELINE, Run
from burnish.stages import reward, sft
from burnish.stages.evaluate import load_prompts_of
from burnish.stages.pipeline import resume_pipeline
from burnish.stages.ppo import run_ppo

CONFIGS: dict[str, type[ModelConfig]] = {"sft": SFTConfig, "reward": RewardModelConfig, "ppo": TrainConfig}


def resume_run(console: Console, folder: str, from_step: int | None, overrides: list[str]) -> Run:
    """Goes on with a pipeline, or with a run of any stage, from its last checkpoint or the one asked for."""
    if (Path(folder) / PIPELINE).is_file() and from_step is None:
        return resume_pipeline(console, Path(folder), overrides)
    run = Run.open(folder)
    if run.pipeline_folder and run.stage != "ppo":  # its data leaves out what the pipeline's PPO is measured on
        raise InputError(f"{folder} is a stage of a pipeline, which goes on with: burnish resume {run.pipeline_folder}")
    settings = run.settings
    kind = CONFIGS[run.stage]
    if run.stage == "ppo" and "prompts" not in settings:
        raise InputError(f"{folder} was trained from Python and names no prompts; PPOTrainer.restore goes on there")
    apply_overrides(kind, settings, overrides)
    start_paths_at(Path(), settings)
    config = kind(**settings)
    place = (run.folder.parent, run.folder.name, console)
    if isinstance(config, SFTConfig):
        data, bad = sft.load_data(config)
        return sft.run_sft(config, data, *place, bad, from_step=from_step)
    if isinstance(config, RewardModelConfig):
        judgements, bad = reward.load_data(config)
        return reward.run_reward(config, judgements, *place, bad, from_step=from_step)
    assert isinstance(config, TrainConfig)
    prompts, bad = load_prompts_of(config)
    return run_ppo(config, prompts, *place, bad, from_step=from_step)


def show_checkpoints(console: Console, folder: str) -> None:
    """Step, size and whether each is as it was written."""
    run = Run.open(folder)
    table = Table("step", "size", "verifies", "", box=None, header_style="dim", padding=(0, 2, 0, 0))
    found = Checkpoints(run.folder / "checkpoints").all()
    for checkpoint in found:
        size = f"{checkpoint.nbytes / 2**20:.1f} MB"
        table.add_row(f"{checkpoint.step}", size, "no" if checkpoint.problem else "yes", checkpoint.problem or "")
    if not found:
        console.print(f"{run.folder} has no checkpoints.", highlight=False)
        return
    console.print(table)


def verify_run(console: Console, folder: str) -> None:
    """Reads every byte of every checkpoint; an unusable newest one ends in exit code 4."""
    run = Run.open(folder)
    found = Checkpoints(run.folder / "checkpoints").all()
    show_checkpoints(console, folder)
    for file in ("metrics.jsonl", "samples.jsonl", "probes.jsonl"):
        run.read_lines(file)  # a damaged line ends it here
    if found and all(c.problem for c in found):
        raise NoCheckpointError(f"no checkpoint of {run.folder} verifies")
    damaged = [c for c in found if c.problem]
    if damaged:
        raise NoCheckpointError(
            f"{len(damaged)} of {len(found)} checkpoints are damaged; `burnish resume` uses step "
            f"{max(c.step for c in found if not c.problem)}"
        )
    console.print("Everything is as it was written." if found else "The logs are whole.", highlight=False)
