"""What a PPO run says before its first step, and after its last: what it will do, and how its result is used."""

from __future__ import annotations

from rich.console import Console

from burnish.base_setup.invocation import NO_SHARED_ENDING
from burnish.base_setup.lora_setup import unreachable
from burnish.base_setup.sources import model_source
from burnish.config import TrainConfig
from burnish.data import Split
from burnish.decoder.base_identity import MergedLora
from burnish.ppo.ppo_trainer import PPOTrainer
from burnish.runs.run import Run
from burnish.show import terminal
from burnish.text import plain


def announce(
    console: Console, trainer: PPOTrainer, prompts: Split[str], run: Run, memory: list[tuple[str, float, str]]
) -> None:
    config = trainer.config
    console.print(terminal.memory_table(memory))
    updates = config.optimizer_steps_per_ppo_step
    console.print(
        f"{config.steps} PPO steps of {config.batch_size} responses"
        f"{f' ({config.responses_per_prompt} to a prompt)' if config.responses_per_prompt > 1 else ''}, "
        f"{len(prompts.train)} prompts; each step makes {updates} optimizer {'step' if updates == 1 else 'steps'} of "
        f"{'each model' if config.has_critic and config.value_epochs in (None, config.epochs) else 'the policy'}"
        f"{', fewer where target_kl_stop ends them' if config.target_kl_stop and updates > 1 else ''}. "
        f"Adapters act on the {config.adapter_scope}, reward: {plain(trainer.reward_computer.name)}. "
        f"Run folder: {plain(str(run.folder))}",
        highlight=False,
    )
    if config.rollout is not None:
        console.print(plain(f"Responses come from {', '.join(config.rollout.urls)}."), highlight=False)
    terminal.print_start(console, trainer.base.identity.merged)
    decoder = trainer.base.decoder
    if not decoder.shares_trunk:
        console.print(plain(f"{decoder.sharing[0].upper()}{decoder.sharing[1:]} ({decoder.reason})."), highlight=False)
    missed = unreachable(decoder.layers)
    if missed:
        console.print(plain(f"Not adapted, because peft cannot reach them: {', '.join(missed)}."), highlight=False)
    if trainer.base.tokenizer.pad_token_id is None:
        console.print("The tokenizer has no pad token; none is needed: padding is masked by length.", highlight=False)
    if config.adapter_scope == "response" and not trainer.base.invocation:
        console.print(NO_SHARED_ENDING, highlight=False)


def how_to_use(run: Run, config: TrainConfig, invocation: list[int], merged: MergedLora | None) -> str:
    """The adapter's path and what loads it."""
    revision = "" if config.revision is None else f', revision="{config.revision}"'
    lines = [f"\nThe tuned adapter is in {run.policy_folder}", f'  burnish generate {run.folder} "your prompt"']
    if config.adapter_scope == "sequence" or invocation:
        lines += [
            "or from Python:",
            "  from transformers import AutoModelForCausalLM",
            "  from peft import PeftModel",
            f'  base = AutoModelForCausalLM.from_pretrained("{model_source(config)}"{revision})',
        ]
        if merged is not None:
            lines.append(f'  base = PeftModel.from_pretrained(base, "{merged.folder}").merge_and_unload()  # the start')
        lines.append(f'  model = PeftModel.from_pretrained(base, "{run.policy_folder}")')
    if merged is not None:
        lines.append("(It stands on the base with that LoRA merged into it; on the base alone it says something else.)")
    if config.adapter_scope == "sequence":
        lines.append("(`model.merge_and_unload()` folds it into the base.)")
    elif invocation:
        lines.append(
            "(An activated LoRA: it acts from the prompt's last tokens on, so do not merge it. `generate` finds "
            "them. A forward pass over prompt and response takes their last occurrence: where a response may "
            "contain them too, give alora_offsets: docs/scopes.md.)"
        )
    return "\n".join(lines)
