"""Tiny runs that talk: saved as training saves them, with adapters that say something else than their base."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from burnish import PPOConfig, PPOTrainer
from burnish.rollout.sampling import Sampler
from burnish.runs.run import Run
from burnish.serving.answer import Piece, Question
from burnish.serving.engine import Engine
from burnish.serving.served import Served
from burnish.stages.generate import speakers_of
from tiny import count_vowels, perturb, tiny_model, tiny_tokenizer

GREEDY = Sampler(greedy=True)


def tiny_run(folder: Path, scope: str = "response", chat: bool = False, name: str = "talks", **changes: Any) -> Path:
    """The folder of a run whose policy is random. Prompts end in a colon."""
    model = folder / "model"
    if not model.exists():
        tiny_model().save_pretrained(model)
        tiny_tokenizer().save_pretrained(model)
    settings = {"lora_r": 4, "lora_alpha": 8, "max_new_tokens": 24, "prompt_cache_mb": 4, "batch_size": 8} | changes
    config = PPOConfig(model_name=str(model), adapter_scope=scope, chat_template=chat, **settings)
    trainer = PPOTrainer(config, count_vowels)
    perturb(trainer)
    trainer.generator.agree_on_invocation(["one:", "another:"])
    trainer.save(folder / name)
    return folder / name


def served_run(folder: Path) -> Served:
    return Served(Run.open(folder), speakers_of(Console(quiet=True), str(folder)))


class Heard:
    """Listens to an engine."""

    def __init__(self) -> None:
        self.pieces: queue.Queue[Piece] = queue.Queue()

    def wait(self, num_answers: int) -> list[list[Piece]]:
        """The pieces of each answer."""
        found: list[list[Piece]] = [[] for _ in range(num_answers)]
        while not all(own and own[-1].finish for own in found):
            piece = self.pieces.get(timeout=60)
            found[piece.number].append(piece)
        return found


def texts_of(engine: Engine, questions: Sequence[Question]) -> list[str]:
    """Asked in one request."""
    heard = Heard()
    engine.ask(questions, heard.pieces.put)
    return ["".join(p.text for p in own) for own in heard.wait(sum(q.num_answers for q in questions))]


def together(engine: Engine, questions: Iterable[Question]) -> list[str]:
    """Each asked by itself, at the same time."""
    asked = []
    for question in questions:
        heard = Heard()
        engine.ask([question], heard.pieces.put)
        asked.append((heard, question))
    return ["".join(p.text for p in own) for heard, q in asked for own in heard.wait(q.num_answers)]
