"""From a response-scope run to an ordinary LoRA: taught by the trained model, and measured beside it."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from burnish.data import prompts_of
from burnish.errors import InputError, RewardFailedError, WrongExportError
from burnish.evaluation.evaluation import Evaluation, both_scored
from burnish.evaluation.measure import evaluate
from burnish.export.distillation import LEARNING_RATE, MOST_UPDATES, Distillation, Learned, ReadsPrompts, acting_on
from burnish.export.source import Source
from burnish.models.adapter_files import load_adapter, save_adapter
from burnish.models.policy_model import PolicyModel
from burnish.ppo.ppo_trainer import PPOTrainer
from burnish.runs.run import Run
from burnish.show import terminal
from burnish.stages.evaluate import HeldOut, held_out_of
from burnish.stages.export import NUM_PROMPTS, Wish
from burnish.stages.judging import second_reward
from burnish.stages.stage import STAGES
from burnish.text import plain

ORDINARY = "ordinary"  # the name of a distilled adapter on the base
MOST_HELD_OUT = 32  # prompts that the KL is measured on
# What counts as done: so much of the way from the base to the trained model may be missing, or so many nats a token,
# whichever is more.
SHARE_LEFT, LEAST_KL = 0.1, 0.01


class Pupil:
    """Loads the run with its reward, teaches, and measures teacher and student."""

    def __init__(self, console: Console, wish: Wish, run: Run) -> None:
        self.console = console
        self.held_out: HeldOut = held_out_of(console, wish.run, wish.trust)
        self.config = self.held_out.config.model_copy(update={"rollout": None})
        self.most_updates = wish.updates or MOST_UPDATES
        data = STAGES["ppo"].load(self.config)
        with terminal.busy(console, terminal.loading(self.config)):
            self.trainer = PPOTrainer(self.config)
            load_adapter(self.trainer.base, "policy", run.policy_folder)
            self.trainer.setup.add_adapter(ORDINARY)
        self.train = [ids for p in prompts_of(data.train) if (ids := self._readable(p))]
        temperature = self.config.temperature
        self.teacher = PolicyModel(self.trainer.base, "policy", temperature)
        self.student = PolicyModel(self.trainer.base, ORDINARY, temperature)

    def _readable(self, prompt: str) -> list[int] | None:
        ids, problem = self.trainer.setup.encoder.try_encode(prompt)
        return None if problem else ids

    def teacher_source(self, run: Run, wish: Wish) -> Source:
        prompts = list(wish.prompts) or self.held_out.prompts[:NUM_PROMPTS]
        return Source(run, self.config, self.trainer.setup, "policy", run.policy_folder, prompts)

    def taught(self) -> dict[str, Any]:
        """Teaches until it gets no better; says what came of it, and refuses what is not near enough."""
        lesson = Distillation(self.teacher, self.student, self.config, LEARNING_RATE)
        lesson.begin_with_the_teacher()
        held_out = lesson.lessons(self.trainer.setup.encoder.encode(self.held_out.prompts[:MOST_HELD_OUT]))
        of_base = lesson.kl(held_out, PolicyModel(self.trainer.base, None, self.config.temperature))
        learned = lesson.learn(self.train, held_out, self.most_updates, self._tell)
        self._refuse_far(learned, of_base)
        before, after = self._rewards()
        facts = asdict(learned) | {"num_prompts": len(self.train), "kl_of_base": of_base}
        facts["reward_before"], facts["reward_after"] = (
            None if side is None else side.as_dict()["reward"] for side in (before, after)
        )
        return facts

    def _tell(self, update: int, kl: float) -> None:
        at = "as it begins" if update == 0 else f"after {update} updates"
        self.console.print(f"KL of the trained model to the new one, {at}: {kl:.4f} nats a token", highlight=False)

    def _refuse_far(self, learned: Learned, of_base: float) -> None:
        enough = max(SHARE_LEFT * of_base, LEAST_KL)
        if not learned.kl <= enough:
            raise WrongExportError(
                f"the ordinary LoRA is not near enough, and was not kept: after {learned.updates} updates the KL of "
                f"the trained model to it is {learned.kl:.4f} nats a token on held-out prompts, and {enough:.4f} would "
                f"do (the base is {of_base:.4f} away). Allow more --updates, or train with adapter_scope: sequence"
            )

    def _rewards(self) -> tuple[Evaluation | None, Evaluation | None]:
        """Of teacher and student on all held-out prompts, drawn with the same random numbers."""
        trainer, prompts = self.trainer, self.held_out.prompts
        second = second_reward(trainer, self.config)
        try:
            with terminal.busy(self.console, f"both answer {len(prompts)} held-out prompts"):
                before = evaluate(trainer, prompts, self.teacher, second)
                after = evaluate(trainer, prompts, self.student, second, engine=ReadsPrompts())
            before, after = both_scored(before, after)
        except (RewardFailedError, InputError) as error:
            warnings.warn(f"the reward of teacher and student could not be measured: {error}", stacklevel=2)
            return None, None
        self.console.print(terminal.before_after_table(before, after, ("trained", "ordinary LoRA")))
        return before, after

    def save(self, folder: Path) -> None:
        with acting_on(self.trainer.base, "sequence"):
            save_adapter(self.student, folder)

    def student_source(self, run: Run, folder: Path, prompts: list[str]) -> Source:
        """From here on the base reads whole sequences: the run's own adapter is not asked any more."""
        base = self.trainer.base
        base.scope, base.invocation = "sequence", []
        return Source(run, self.config, self.trainer.setup, ORDINARY, folder, prompts, distilled=True)


def say_same(console: Console, same: int, total: int) -> None:
    told = f"Most likely answers of both that are the same, token by token: {same} of {total}."
    console.print(plain(told), highlight=False)
