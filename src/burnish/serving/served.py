"""The two models of a run as others ask for them: their names, what they know of themselves, how they read a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from burnish.errors import InputError
from burnish.runs.run import Run
from burnish.stages.generate import Speakers, checkpoints_of

START = ":start"


class UnknownModelError(InputError):
    """None of these has that name."""


class TooLongError(InputError):
    """A prompt and its answer are longer than the model's context."""


@dataclass(frozen=True)
class Served:
    """The speakers of a run by the names that a client knows."""

    run: Run
    speakers: Speakers

    def __post_init__(self) -> None:
        if "tuned" not in self.speakers.adapters:
            folder, steps = self.run.folder, checkpoints_of(self.run).steps()
            named = ", ".join(map(str, steps))
            raise InputError(
                f"{folder} has not finished, so it has no tuned model; finish it: burnish resume {folder}, or ask one "
                f"of its checkpoints ({named}): burnish generate {folder} PROMPT --step {steps[-1]}"
            )

    @property
    def name(self) -> str:
        return self.run.name

    @cached_property
    def models(self) -> dict[str, str]:
        """What the speaker of each model is called, the tuned one first."""
        start, tuned = self.speakers.adapters
        return {self.name: tuned, self.name + START: start}

    @property
    def context_length(self) -> int:
        return self.speakers.setup.encoder.context_length

    @property
    def usual(self) -> dict[str, Any]:
        """How answers are drawn if nobody says otherwise: as the run drew them."""
        own = self.speakers.drawn_with
        kept = {"temperature": own.temperature, "top_k": own.top_k, "top_p": own.top_p}
        return kept | {"max_tokens": self.speakers.config.max_new_tokens}

    def adapter(self, model: str) -> str | None:
        if model not in self.models:
            raise UnknownModelError(f"there is no model {model!r:.80}; there are {' and '.join(self.models)}")
        return self.speakers.adapters[self.models[model]]

    def described(self, model: str) -> dict[str, Any]:
        """As /v1/models lists it."""
        adapter = self.adapter(model)
        base, encoder = self.speakers.setup.base, self.speakers.setup.encoder
        acts = base.scope == "response" and adapter is not None
        return {
            "id": model,
            "object": "model",
            "created": int(self.run.path("config.yaml").stat().st_mtime),
            "owned_by": "burnish",
            "burnish": {
                "speaker": self.models[model],
                "base": self.speakers.config.model_name,
                "chat_template": encoder.chat_template,
                "adapter_scope": base.scope,
                "prompts_end_in": base.tokenizer.decode(base.invocation) if acts and base.invocation else None,
                "context_length": self.context_length,
                "usual": self.usual,
            },
        }

    def read_text(self, adapter: str | None, prompt: str | Sequence[int]) -> list[int]:
        """Token ids of a prompt as it stands."""
        setup = self.speakers.setup
        if isinstance(prompt, str):
            ids = setup.encoder.read_text(prompt)
        else:
            ids = list(prompt)
            size = len(setup.base.head)
            if any(not 0 <= token < size for token in ids):
                raise InputError(f"prompt has a token that is none of the model's, 0 to {size - 1}")
        if not ids:
            raise InputError("prompt has no tokens; the model needs at least one")
        self._check_end(adapter, ids)
        return ids

    def read_chat(self, adapter: str | None, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a conversation up to the assistant's next words."""
        encoder = self.speakers.setup.encoder
        if not encoder.chat_template:
            raise InputError(
                "this run has no chat template: its prompts are plain text (chat_template: false). Ask "
                "/v1/completions, or train with chat_template: true"
            )
        ids = encoder.read_chat(messages)
        self._check_end(adapter, ids)
        return ids

    def room_for_answer(self, ids: Sequence[int], wanted: int | None) -> int:
        """Tokens that the answer may have."""
        left = self.context_length - len(ids)
        if left < (wanted or 1):
            asked = f"the answer up to {wanted}" if wanted else "the answer at least 1"
            raise TooLongError(
                f"the prompt has {len(ids)} tokens and {asked}; the model's context is {self.context_length} tokens"
            )
        return wanted or min(left, int(self.usual["max_tokens"]))

    def _check_end(self, adapter: str | None, ids: Sequence[int]) -> None:
        """An adapter of response scope acts from where training's prompts all ended; another end it has never met."""
        base = self.speakers.setup.base
        end = base.invocation
        if adapter is None or base.scope != "response" or not end or list(ids[-len(end) :]) == end:
            return
        told = base.tokenizer.decode(end)
        hint = "; ask /v1/chat/completions, whose template does" if self.speakers.setup.encoder.chat_template else ""
        raise InputError(f"the prompt must end in {told!r}, as in training: the adapter acts from there on{hint}")
