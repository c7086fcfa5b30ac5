"""The tokenizer, and how a user's prompt becomes tokens."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import compress
from typing import Any

from jinja2 import TemplateError
from torch import Tensor

from burnish.data import problem_with
from burnish.data.records import messages_of, named, place_of, prompt_key, reference_of, require_references
from burnish.errors import InputError, count, some_of

MOST_KNOWN = 100_000  # prompts whose tokens are kept: some hundred bytes each


class PromptEncoder:
    """Turns prompts into token ids: as they stand, or as a user's message through the chat template."""

    def __init__(
        self, tokenizer: Any, context_length: int, max_new_tokens: int, chat_template: bool, system_prompt: str | None
    ) -> None:
        self.tokenizer = tokenizer
        self.max_prompt_tokens = context_length - max_new_tokens
        self.context_length = context_length
        self.max_new_tokens = max_new_tokens
        self.chat_template = chat_template
        self.system_prompt = system_prompt
        self._known: dict[tuple[str, str], array[int]] = {}
        self._known_references: dict[str, array[int]] = {}
        if chat_template and not tokenizer.chat_template:
            raise InputError("chat_template is on, but this model's tokenizer has none; set chat_template: false")
        if chat_template:
            self._try_template()

    def encode(self, prompts: Sequence[str]) -> list[list[int]]:
        """Token ids per prompt. Empty, blank and too long prompts are refused, by number."""
        if isinstance(prompts, str) or not isinstance(prompts, Sequence) or not prompts:
            raise InputError(f"prompts must be a list of at least one string, not {prompts!r:.60}")
        encoded, problems = [], []
        for number, prompt in enumerate(prompts):
            if not isinstance(prompt, str):
                raise InputError(f"prompt {number} is {prompt!r:.60}, of type {type(prompt).__name__}; it must be text")
            ids, problem = self.try_encode(prompt)
            if problem:
                problems.append(f"{place_of(prompt) or f'prompt {number}'} {problem}")
            encoded.append(ids)
        if problems:
            raise InputError(f"{count(len(problems), 'prompt')} cannot be used:\n{some_of(problems)}")
        return encoded

    def try_encode(self, prompt: str) -> tuple[list[int], str | None]:
        """Token ids, and why the prompt cannot be used, if it cannot. Each prompt is tokenized once."""
        key = prompt_key(prompt)
        if key in self._known:
            return self._known[key].tolist(), None
        ids, problem = self._try_encode(prompt)
        if problem is None and len(self._known) < MOST_KNOWN:
            self._known[key] = array("i", ids)
        return ids, problem

    def _try_encode(self, prompt: str) -> tuple[list[int], str | None]:
        problem = problem_with(prompt)
        if problem is None and messages_of(prompt) is not None and not self.chat_template:
            problem = "is a chat; set chat_template: true"
        ids: list[int] = []
        try:
            ids = [] if problem else self._tokens_of(prompt)
        except _RefusedError as error:
            problem = f"is refused by the model's chat template: {error}. It begins: {prompt[:60]!r}"
        if len(ids) > self.max_prompt_tokens:
            problem = (
                f"has {len(ids)} tokens; with max_new_tokens {self.max_new_tokens} the model's context of "
                f"{self.context_length} leaves room for {self.max_prompt_tokens}. Shorten it, or lower max_new_tokens. "
                f"It begins: {prompt[:60]!r}"
            )
        return ids, problem

    @property
    def header(self) -> list[int]:
        """The tokens with which the chat template opens the assistant's turn; empty without a template."""
        if not self.chat_template:
            return []
        message = [{"role": "user", "content": "x"}]
        with_header = self._templated(message, add_generation_prompt=True)
        return with_header[len(self._templated(message, add_generation_prompt=False)) :]

    def encode_answers(self, answers: Sequence[str], stop_id: int) -> list[list[int]]:
        """Token ids of answers that people wrote, each ended by the stop token and cut to max_new_tokens."""
        encoded = [list(self.tokenizer(a, add_special_tokens=False)["input_ids"]) for a in answers]
        return [[*ids, stop_id][: self.max_new_tokens] for ids in encoded]

    def encode_beside_references(self, prompts: Sequence[str]) -> list[list[int]]:
        """Token ids of each prompt behind its reference answer: what a critic may read, and the policy may not."""
        require_references(prompts, "value_reads_reference")
        encoded = []
        for prompt, ids in zip(prompts, self.encode(prompts), strict=True):
            encoded.append([*self._announced(str(reference_of(prompt))), *ids])
            if len(encoded[-1]) > self.max_prompt_tokens:
                raise InputError(
                    f"{named(prompt)} and its reference answer have {len(encoded[-1])} tokens; there is room for "
                    f"{self.max_prompt_tokens}. Shorten them, or set value_reads_reference: false"
                )
        return encoded

    def _announced(self, reference: str) -> array[int]:
        """Token ids of a reference answer, with words that say what it is. Each is tokenized once."""
        ids = self._known_references.get(reference)
        if ids is None:
            text = f"Reference answer: {reference}\n\n"
            ids = array("i", self.tokenizer(text, add_special_tokens=False)["input_ids"])
            if len(self._known_references) < MOST_KNOWN:
                self._known_references[reference] = ids
        return ids

    def decode(self, tokens: Tensor, mask: Tensor) -> list[str]:
        """Responses as text, without special tokens.  [B, T], [B, T]"""
        responses = [list(compress(ids, own)) for ids, own in zip(tokens.tolist(), mask.tolist(), strict=True)]
        return self.tokenizer.batch_decode(responses, skip_special_tokens=True)

    def read_text(self, text: str) -> list[int]:
        """Token ids of a text as it stands, of any length; nothing is kept of it."""
        return list(self.tokenizer(text)["input_ids"])

    def read_chat(self, chat: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a conversation up to where the assistant speaks next, of any length; nothing is kept of it."""
        if not self.chat_template:
            raise InputError("this run has no chat template (chat_template: false): its prompts are plain text")
        try:
            return self._tokens_of_chat(chat)
        except _RefusedError as error:
            raise InputError(f"the model's chat template refuses these messages: {error}") from None

    def count_tokens(self, text: str) -> int:
        """Length of a text as it stands, without template."""
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _tokens_of(self, prompt: str) -> list[int]:
        if not self.chat_template:
            return self.read_text(prompt)
        return self._tokens_of_chat(messages_of(prompt) or [{"role": "user", "content": prompt}])

    def _tokens_of_chat(self, chat: Sequence[dict[str, str]]) -> list[int]:
        messages = list(chat)
        if self.system_prompt is not None and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        return self._templated(messages, add_generation_prompt=True)

    def _try_template(self) -> None:
        """A template that takes no message at all, or no system message, is reported once and not for every prompt."""
        try:
            self._templated([{"role": "user", "content": "x"}], add_generation_prompt=False)
        except _RefusedError as error:
            raise InputError(f"the model's chat template cannot be used: {error}; set chat_template: false") from None
        if self.system_prompt is None:
            return
        messages = [{"role": "system", "content": self.system_prompt}, {"role": "user", "content": "x"}]
        try:
            self._templated(messages, add_generation_prompt=True)
        except _RefusedError as error:
            raise InputError(
                f"the model's chat template refuses a system message: {error}; leave system_prompt out, and put its "
                "text into the prompts"
            ) from None

    def _templated(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> list[int]:
        try:
            encoded = self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=add_generation_prompt, return_dict=True
            )
        # A template is a program that comes with the model: it refuses in words, or fails on what it was not made for.
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise _RefusedError(str(error) or type(error).__name__) from None
        return list(encoded["input_ids"])


class _RefusedError(Exception):
    """What a chat template says to messages that it does not take."""
