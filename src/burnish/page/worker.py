"""The process that computes for the page: `python -m burnish.page.worker RUN`. What a question needs is loaded when the
first one comes. A line of JSON in, lines of JSON out: {"answer": NAME, "text": so far}, {"parts": [...], "reward": ...}
or {"error": sentence}; at last {"end": true}. It ends when nobody is left to ask.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor

from burnish.config import ModelConfig, PPOConfig, TrainConfig
from burnish.data import Prompt
from burnish.data.cells import as_text
from burnish.errors import BurnishError, InputError
from burnish.ppo.from_run import given_before
from burnish.ppo.reward_computer import RewardComputer
from burnish.rewards.part import TokenJudge
from burnish.rollout.sampling import Draws, Sampled, Sampler
from burnish.runs.run import Run
from burnish.sa_pairs.table import SAPairs
from burnish.stages.generate import Speakers, speakers_of
from burnish.stages.reward_test import computer_of
from burnish.stages.trusted import ask_for_trust, model_deeds

MOST_PIECES = 100  # of a text that is scored as it grows: each is read anew
Say = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Heard(Sampler):
    """A sampler whose tokens are heard as they are drawn."""

    listener: Callable[[int], None] = field(default=lambda token: None)

    def __call__(self, logits: Tensor, generator: Draws = None, numbers: Tensor | None = None) -> Sampled:
        sampled = super().__call__(logits, generator, numbers)
        self.listener(int(sampled.action[0]))
        return sampled


class Computer:
    """What a run's models say."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.console = Console(quiet=True)

    @cached_property
    def speakers(self) -> Speakers:
        return speakers_of(self.console, self.folder)

    @cached_property
    def reward(self) -> RewardComputer:
        run = Run.open(self.folder)
        if "reward" in given_before(run):
            raise InputError("this run's reward was given from Python, and no file has it; ask it there")
        if run.stage == "sft":
            raise InputError("a run of `burnish sft` has no reward that could be asked")
        settings = run.settings
        if run.stage == "reward":
            kept = {key: value for key, value in settings.items() if key in {*ModelConfig.model_fields, "sft"}}
            config = PPOConfig(**kept, reward=os.fspath(Path(self.folder).resolve()))
        else:
            config = (TrainConfig if "prompts" in settings else PPOConfig)(**settings)
        deeds = [*model_deeds(config), *(deed for part in config.reward_parts for deed in part.deeds())]
        ask_for_trust(self.console, run.path("config.yaml"), deeds, trust=False)
        return computer_of(self.console, config)

    def answer(self, asked: dict[str, Any], say: Say) -> None:
        """Each speaker in turn, word by word. `who` are two of: start, tuned, step N."""
        speakers = self.speakers
        start = next(iter(speakers.adapters))
        names = [start if who == "start" else who for who in asked.get("who") or ("start", "tuned")]
        prompt = _prompt(asked)
        own, tokenizer = speakers.drawn_with, speakers.setup.base.tokenizer
        temperature = asked.get("temperature", own.temperature)
        how = (temperature or 1.0, asked.get("top_k", own.top_k), asked.get("top_p", own.top_p), temperature == 0)
        most = min(asked.get("max_new_tokens") or speakers.config.max_new_tokens, speakers.config.max_new_tokens)
        for name in names:
            tokens: list[int] = []

            def listen(token: int, name: str = name, tokens: list[int] = tokens) -> None:
                tokens.append(token)
                say({"answer": name, "text": tokenizer.decode(tokens, skip_special_tokens=True)})

            say({"answer": name, "text": ""})
            sampler = Heard(*how, listener=listen)
            (text,) = speakers.answers(name, [prompt], sampler, asked.get("seed", 0), most)
            say({"answer": name, "text": text, "is_whole": True})

    def score(self, asked: dict[str, Any], say: Say) -> None:
        """By every part of the reward. A part that judges tokens says what it thinks of each; a reward model, how it
        judges the text as it grows.
        """
        prompt = Prompt(asked["prompt"], "the prompt", reference=asked.get("reference") or None)
        scores = self.reward.compute_parts([prompt], [asked["response"]])
        parts: list[dict[str, Any]] = []
        for part in self.reward.parts:
            score = scores[part.name][0]
            tokens = [float(own) for own in score] if isinstance(score, list) else None
            whole = sum(tokens) if tokens is not None else float(score)
            grown = growing(part.reward, prompt, asked["response"]) if isinstance(part.reward, TokenJudge) else None
            told = {"name": part.name, "score": whole, "weight": part.weight, "tokens": tokens, "growing": grown}
            parts.append(told)
        say({"parts": parts, "reward": sum(part["score"] * part["weight"] for part in parts)})


def growing(judge: TokenJudge, prompt: str, response: str) -> list[dict[str, Any]]:
    """The text piece by piece, and how it is scored if it ends there; the first piece is empty."""
    reader = judge.models[0]
    (encoded,), ids = reader.encode([prompt]), reader.base.tokenizer(response, add_special_tokens=False)["input_ids"]
    most = min(len(ids), MOST_PIECES)
    ends = [round(len(ids) * k / most) for k in range(most + 1)]
    texts = [[*ids[:end], reader.base.stop_id] for end in ends]
    scores = judge.judge(SAPairs.of_tokens([encoded] * len(ends), texts, reader.base.device)).tolist()
    starts = [0, *ends[:-1]]
    pieces = [reader.base.tokenizer.decode(ids[start:end]) for start, end in zip(starts, ends, strict=True)]
    return [{"text": text, "score": score} for text, score in zip(pieces, scores, strict=True)]


def _prompt(asked: dict[str, Any]) -> str:
    """What is said now, after what was said before, if anything was."""
    before = asked.get("messages")
    if not before:
        return asked["prompt"]
    messages = [*before, {"role": "user", "content": asked["prompt"]}]
    return Prompt(as_text(messages), "the conversation", messages)


def main(folder: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the page's
    questions = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what a reward function prints is no answer

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    computer = Computer(folder)
    for line in questions:
        asked = json.loads(line)
        try:
            (computer.answer if asked["do"] == "answer" else computer.score)(asked, say)
        except BurnishError as error:
            say({"error": str(error)})
        except BrokenPipeError:
            return
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"})
        say({"end": True})


if __name__ == "__main__":
    main(sys.argv[1])
