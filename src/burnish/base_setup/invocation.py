"""Where response-scope adapters begin to act: the tokens that every prompt ends in."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from burnish.base_setup.tokenizer_setup import PromptEncoder
from burnish.decoder.shared_base import SharedBase, shared_ending
from burnish.errors import InputError

NO_SHARED_ENDING = (
    "The prompts share no ending, so peft cannot tell where a response-scope adapter begins: load the result with "
    "`burnish generate`, or train with adapter_scope: sequence for an adapter that loads anywhere."
)


class Invocation:
    """The agreement on it, made once over all prompts: the chat template's header, or the tokens that all end in."""

    def __init__(self, base: SharedBase, encoder: PromptEncoder) -> None:
        self.base = base
        self.encoder = encoder
        self._known = False

    def agree(self, prompts: Sequence[str]) -> None:
        """Later prompts that share less shorten it, with a warning; an adapter that was loaded brings its own."""
        encoded = self.encoder.encode(prompts)
        base = self.base
        if base.scope == "sequence":
            return
        if not self._known:
            if not base.invocation_is_loaded:
                base.act_from(self.encoder.header or shared_ending(encoded))
            self._known = True
            base.agree_on_beginning(encoded)
            if not base.invocation:
                warnings.warn(NO_SHARED_ENDING, stacklevel=5)
        agreed = base.invocation
        differs = [p for p, ids in zip(prompts, encoded, strict=True) if ids[len(ids) - len(agreed) :] != agreed]
        if not differs:
            return
        old = self.encoder.tokenizer.decode(agreed)
        if base.invocation_is_loaded:
            raise InputError(
                f"a loaded adapter begins to act at {old!r}, but a prompt ends differently: {differs[0][-40:]!r}; "
                "end every prompt in it"
            )
        base.act_from(shared_ending([agreed, *encoded]))
        new = self.encoder.tokenizer.decode(base.invocation)
        now = f"from now on the adapters begin to act at {new!r}" if new else NO_SHARED_ENDING
        warnings.warn(
            f"not all of these prompts end in {old!r}: {now} (trainer.generator.agree_on_invocation(all_prompts) "
            "before the first step fixes it for the whole run)",
            stacklevel=5,
        )
