"""`burnish resume`, `burnish checkpoints`, `burnish verify`: going on, and what there is to go on from."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from burnish.checkpoints import Checkpoint, Checkpoints
from burnish.config import RewardModelConfig, SFTConfig, TrainConfig
from burnish.config.files import apply_overrides, start_paths_at
from burnish.config.model_config import ModelConfig
from burnish.data import load_prompts_of
from burnish.disk import refuse_links
from burnish.errors import InputError, NoCheckpointError
from burnish.runs import LOGS, PIPELINE, Run
from burnish.stages import reward, sft
from burnish.stages.pipeline import resume_pipeline
from burnish.stages.ppo import run_ppo
from burnish.stages.trusted import all_deeds, ask_for_trust
from burnish.terminal import plain

CONFIGS: dict[str, type[ModelConfig]] = {"sft": SFTConfig, "reward": RewardModelConfig, "ppo": TrainConfig}


def resume_run(console: Console, folder: str, from_step: int | None, overrides: list[str], trust: bool = False) -> Run:
    """Goes on with a pipeline, or with a run of any stage, from its last checkpoint or the one asked for.

    `trust` lets the config of a run that is not this user's do what it asks for.
    """
    if (Path(folder) / PIPELINE).is_file():
        refuse_links(Path(folder))
        return resume_pipeline(console, Path(folder), overrides, from_step, trust)
    run = Run.open(folder)
    if run.pipeline_folder:  # which knows what its stages hold back for each other, and ends with verdict and report
        raise InputError(f"{folder} is a stage of a pipeline, which goes on with: burnish resume {run.pipeline_folder}")
    settings = run.settings
    kind = CONFIGS[run.stage]
    if run.stage == "ppo" and "prompts" not in settings:
        raise InputError(f"{folder} was trained from Python and names no prompts; PPOTrainer.restore goes on there")
    apply_overrides(kind, settings, overrides)
    start_paths_at(Path(), settings)
    config = kind(**settings)
    ask_for_trust(console, run.path("config.yaml"), all_deeds(config, run.folder), trust)
    named = run.folder.resolve() if run.folder.is_symlink() else run.folder  # a link that its user named
    place = (named.parent, named.name, console)
    if isinstance(config, SFTConfig):
        data, bad = sft.load_data(config)
        return sft.run_sft(config, data, *place, bad, from_step=from_step)
    if isinstance(config, RewardModelConfig):
        judgements, bad = reward.load_data(config)
        return reward.run_reward(config, judgements, *place, bad, from_step=from_step)
    assert isinstance(config, TrainConfig)
    prompts, bad = load_prompts_of(config)
    return run_ppo(config, prompts, *place, bad, from_step=from_step)


def show_checkpoints(console: Console, folder: str) -> list[Checkpoint]:
    """Step, size and whether each is as it was written."""
    run = Run.open(folder)
    table = Table("step", "size", "verifies", "", box=None, header_style="dim", padding=(0, 2, 0, 0))
    found = Checkpoints(run.folder / "checkpoints").all()
    for checkpoint in found:
        size = f"{checkpoint.nbytes / 2**20:.1f} MB"
        verifies = "no" if checkpoint.problem else "yes"
        table.add_row(f"{checkpoint.step}", size, verifies, plain(checkpoint.problem or ""))
    if not found:
        console.print(plain(f"{run.folder} has no checkpoints."), highlight=False)
        return found
    console.print(table)
    return found


def verify_run(console: Console, folder: str) -> None:
    """Reads every byte of every checkpoint and every line of the logs; whatever is damaged ends in exit code 4."""
    run = Run.open(folder)
    found = show_checkpoints(console, folder)
    try:
        rows = {file: run.read_lines(file) for file in LOGS}["metrics.jsonl"]
    except InputError as error:
        raise NoCheckpointError(str(error)) from None
    steps = [row.get("step", row.get("update")) for row in rows]
    newest = max((c.step for c in found if not c.problem), default=0)
    if steps != list(range(1, len(steps) + 1)) or len(steps) < newest:
        raise NoCheckpointError(
            f"{run.folder / 'metrics.jsonl'} does not hold every step once, in order, up to that of the last checkpoint"
        )
    for file in (run.folder / name for name in LOGS):
        if file.is_file() and file.stat().st_size and not file.read_bytes().endswith(b"\n"):
            raise NoCheckpointError(f"the last line of {file} was cut off; `burnish resume` makes its step again")
    damaged = [c for c in found if c.problem]
    if damaged and len(damaged) == len(found):
        raise NoCheckpointError(f"no checkpoint of {run.folder} verifies")
    if damaged:
        raise NoCheckpointError(
            f"{len(damaged)} of {len(found)} checkpoints are damaged; `burnish resume` uses step "
            f"{max(c.step for c in found if not c.problem)}"
        )
    whole = "Every checkpoint is as it was written, and the" if found else "The"
    console.print(f"{whole} logs are whole: {len(steps)} steps, each once.", highlight=False)
