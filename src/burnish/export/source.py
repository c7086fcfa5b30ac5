"""What is exported: a run's tuned model, and burnish's own answers, which every export is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from burnish.base_setup.base_setup import BaseSetup
from burnish.config import ModelConfig, PPOConfig
from burnish.decoder.shared_base import SharedBase
from burnish.errors import InputError
from burnish.models.policy_model import PolicyModel
from burnish.rollout.local import LocalEngine
from burnish.rollout.sampling import Sampler
from burnish.runs.run import Run
from burnish.sa_pairs.table import SAPairs

MOST_TOKENS = 48  # of an answer that is compared


@dataclass(frozen=True)
class Answer:
    """To one prompt: its tokens, and the log-probability that the speaker gave each; NaN where it tells none."""

    tokens: list[int]
    logprobs: list[float]


@dataclass(frozen=True)
class Source:
    """The tuned model, loaded: a base, and the adapter that is exported."""

    run: Run
    config: ModelConfig
    setup: BaseSetup
    adapter: str
    """Its name on the base."""
    folder: Path
    """Where it lies."""
    prompts: list[str]
    """To compare answers to."""
    distilled: bool = False
    """Whether it is an ordinary LoRA made from the run's own."""
    encoded: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        encoded = self.setup.encoder.encode(self.prompts)
        invocation = self.base.invocation if self.scope == "response" else []
        for prompt, ids in zip(self.prompts, encoded, strict=True):
            if ids[len(ids) - len(invocation) :] != invocation:
                ending = self.base.tokenizer.decode(invocation)
                raise InputError(
                    f"the adapter begins to act at {ending!r}, and a prompt to try it with ends in {prompt[-40:]!r}; "
                    "give some that end in it: --prompt"
                )
        object.__setattr__(self, "encoded", encoded)

    @property
    def base(self) -> SharedBase:
        return self.setup.base

    @property
    def scope(self) -> str:
        return self.base.scope

    @property
    def drawn_with(self) -> PPOConfig | None:
        """How answers were sampled in training; SFT sampled none."""
        return self.config if isinstance(self.config, PPOConfig) else None

    @property
    def most_tokens(self) -> int:
        return min(self.config.max_new_tokens, MOST_TOKENS)

    @property
    def speaker(self) -> PolicyModel:
        return PolicyModel(self.base, self.adapter)

    def answers(self) -> list[Answer]:
        """The most likely token each time, with its log-probability over the whole vocabulary at temperature 1."""
        greedy = Sampler(greedy=True)
        rollout = LocalEngine().generate(self.speaker, self.encoded, self.most_tokens, greedy)
        assert rollout.logprob is not None
        rows = zip(rollout.action, rollout.logprob, rollout.mask, strict=True)
        return [Answer(tokens[own].tolist(), logprobs[own].tolist()) for tokens, logprobs, own in rows]

    @torch.no_grad()
    def logprobs(self, number: int, tokens: Sequence[int]) -> list[float]:
        """What burnish gives each token of somebody's answer to a prompt, by the prompt's number."""
        if not tokens:
            return []
        pairs = SAPairs.of_tokens([self.encoded[number]], [list(tokens)], self.base.device)
        return self.speaker.logprobs(pairs)[0].tolist()
