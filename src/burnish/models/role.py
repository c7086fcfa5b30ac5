"""What the four roles have in common: an adapter (or none) on the shared base, and a head that reads its states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from burnish.decoder.base_identity import other_tensors
from burnish.decoder.head import entropy_of_states, kl_of_states, selected_logprobs
from burnish.decoder.shared_base import SharedBase
from burnish.errors import InputError
from burnish.sa_pairs.table import SAPairs


class RoleModel:
    """One role on the shared base."""

    def __init__(self, base: SharedBase, adapter: str | None) -> None:
        self.base = base
        self.adapter = adapter
        self.num_updates = 0  # optimizer steps so far; for the policy it also tells whether a rollout is its own

    def parameters(self) -> list[nn.Parameter]:
        """What training this role changes."""
        return [] if self.adapter is None else self.base.adapter_parameters(self.adapter)

    @property
    def nbytes(self) -> int:
        return sum(p.numel() * p.element_size() for p in self.parameters())

    def adopt(self, sa_pairs: SAPairs) -> SAPairs:
        """The pairs on the base's device and with a shared context, computed now if they come from elsewhere."""
        if sa_pairs.context is not None or sa_pairs.here is not None:
            return sa_pairs
        pairs = sa_pairs.to(self.base.device)
        return replace(pairs, context=self.base.context_of(pairs))


class LanguageModel(RoleModel):
    """A role that speaks: it gives log-probabilities of actions."""

    temperature: float

    def __init__(self, base: SharedBase, adapter: str | None, temperature: float = 1.0) -> None:
        super().__init__(base, adapter)
        self.temperature = temperature

    def states(self, sa_pairs: SAPairs) -> Tensor:
        """The hidden state before every response token, ready for the head.  -> [B, T, H]"""
        return self.base.state_hidden(self.adapter, self.base.context_of(sa_pairs))

    def logprobs(self, sa_pairs: SAPairs, states: Tensor | None = None) -> Tensor:
        """log pi(a|s) of every response token, renormalised over the kept sets.  -> [B, T], zero outside the mask"""
        mask, kept = sa_pairs.mask, sa_pairs.kept
        states = self.states(sa_pairs) if states is None else states
        chosen = selected_logprobs(
            states[mask],  # [N, H]: the head only where a token is scored
            self.base.output,
            sa_pairs["action"][mask],
            None if kept is None else kept[mask],
            self.temperature,
        )
        return scattered(chosen, mask)

    def entropy(self, sa_pairs: SAPairs, states: Tensor) -> Tensor:
        """Entropy of what every response token was drawn from, with gradient.  -> [B, T], zero outside the mask"""
        mask, kept = sa_pairs.mask, sa_pairs.kept
        own = None if kept is None else kept[mask]
        return scattered(entropy_of_states(states[mask], self.base.output, own, self.temperature), mask)

    def kl_to_reference(self, sa_pairs: SAPairs, states: Tensor) -> Tensor:
        """KL(policy || reference) over the whole vocabulary before every response token, with gradient.  -> [B, T]"""
        mask, reference = sa_pairs.mask, self.base.context_of(sa_pairs).reference
        if reference is None:
            raise InputError(
                "these SA pairs carry no states of the reference, which the exact KL in the loss needs; generate them "
                "with a trainer of the same config, or use kl_in: reward"
            )
        return scattered(kl_of_states(states[mask], reference[mask], self.base.output, self.temperature), mask)


def scattered(values: Tensor, mask: Tensor) -> Tensor:
    """Values of the real tokens, in order, at their places.  [N] -> [B, T], zero outside the mask"""
    return torch.zeros(mask.shape, dtype=values.dtype, device=mask.device).masked_scatter(mask, values)


class ScalarModel(RoleModel):
    """A role that judges: a linear head reads one number off each hidden state."""

    def __init__(self, base: SharedBase, adapter: str) -> None:
        super().__init__(base, adapter)
        self.head = nn.Linear(base.hidden_size, 1).to(base.device)  # fp32, whatever the base is kept in

    def parameters(self) -> list[nn.Parameter]:
        return [*super().parameters(), *self.head.parameters()]

    def read(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [...]"""
        return self.head(hidden.float()).squeeze(-1)

    def save_head(self, folder: Path) -> None:
        save_file({k: v.contiguous() for k, v in self.head.state_dict().items()}, folder / "head.safetensors")

    def load_head(self, folder: Path) -> None:
        file = Path(folder) / "head.safetensors"
        if not file.is_file():
            raise InputError(f"{folder} has no head.safetensors; it is not the folder of a value or reward model")
        try:
            saved = load_file(file)
            own = self.head.state_dict()
            problem = other_tensors(own.keys() - saved.keys(), saved.keys() - own.keys())
            if problem:
                raise InputError(f"{file} is not the head of a value or reward model: it {problem}")
            self.head.load_state_dict(saved)
        except (RuntimeError, SafetensorError) as error:
            raise InputError(f"{file} does not fit this base model: {str(error).splitlines()[-1].strip()}") from None
