"""Guards around the training loop: requests to stop, a policy that runs away, rewards that say nothing."""

from __future__ import annotations

import math
import signal
import threading
import warnings
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from burnish.errors import DivergedError
from burnish.sa_pairs import SAPairs

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ADVICE = "Lower the learning rate, raise kl_coef, or look at the rewards of this step"


class StopSignals:
    """Ctrl-C and SIGTERM are remembered until the step is done. A second Ctrl-C is the kernel's: out at once.

    A pipeline's hold and that of the stage within it are one: what was asked of the outer is asked of the inner.
    """

    _held: ClassVar[list[StopSignals]] = []

    def __init__(self, on_request: Callable[[int], None] = lambda number: None) -> None:
        self.exit_code: int | None = None
        self._on_request = on_request
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        self.exit_code = self._held[-1].exit_code if self._held else None
        self._held.append(self)
        if threading.current_thread() is threading.main_thread() and self.exit_code is None:
            self._before = {number: signal.signal(number, self._remember) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self._held.remove(self)
        if self._held:
            self._held[-1].exit_code = self._held[-1].exit_code or self.exit_code
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.exit_code = 128 + number
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        self._on_request(number)


def check_finite(what: str, values: Tensor, sa_pairs: SAPairs) -> None:
    """Nothing that is not a number goes further.  values [B, T]"""
    wrong = ~values.isfinite() & sa_pairs.mask
    if wrong.any():
        row, token = wrong.nonzero()[0].tolist()
        raise DivergedError(
            f"the {what} of response {sa_pairs.numbers[row]}, token {token} became {values[row, token].item()}; no "
            f"weight was changed by it. {ADVICE}",
            sa_pairs,
        )


def gradients_are_finite(parameters: Iterable[nn.Parameter]) -> bool:
    return all(p.grad is None or bool(p.grad.isfinite().all()) for p in parameters)


def is_out_of_memory(error: BaseException) -> bool:
    """A GPU's, Python's, or that of torch's allocator on the CPU, which has no type of its own."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and ("allocate memory" in str(error) or "not enough memory" in str(error))


class RunawayGuard:
    """Stops a run whose policy has left its reference behind: KL beyond `max_kl` several steps in a row."""

    PATIENCE = 3

    def __init__(self, max_kl: float | None) -> None:
        self.max_kl = max_kl
        self.steps_beyond = 0

    def check(self, kl_per_token: float) -> None:
        if self.max_kl is None:
            return
        self.steps_beyond = self.steps_beyond + 1 if kl_per_token > self.max_kl else 0
        if self.steps_beyond >= self.PATIENCE:
            raise DivergedError(
                f"KL to the reference is {kl_per_token:.1f} nats per token, beyond max_kl {self.max_kl:g} for "
                f"{self.PATIENCE} steps in a row: the policy runs away from its reference. Lower "
                "learning_rate, raise kl_coef, or lower target_kl_stop"
            )


class SamplerGapGuard:
    """In half precision decoding and a training pass round differently: stops where they differ by more than the format
    explains, and warns once where they drift apart. `gap` is the mean distance of their log-probabilities.
    """

    # Logits are of the order of 20, and the format rounds them by up to 2^-4 (bfloat16) or 2^-7 (float16).
    LIMITS: ClassVar = {torch.bfloat16: 0.2, torch.float16: 0.03}
    GROWTH = 3.0

    def __init__(self, dtype: torch.dtype) -> None:
        self.limit = self.LIMITS.get(dtype, math.inf)
        self.first_gap: float | None = None

    def check(self, gap: float | None) -> None:
        if gap is None:
            return
        if gap > self.limit:
            raise DivergedError(
                f"sampling and training disagree: their log-probabilities differ by {gap:.2g} on average, which the "
                f"number format does not explain (limit {self.limit:g}). Set dtype: float32, or look for what differs "
                "between the two"
            )
        if self.first_gap is None:
            self.first_gap = gap
        elif gap > self.GROWTH * max(self.first_gap, self.limit / 20):
            warnings.warn(
                f"the gap between sampling and training has grown from {self.first_gap:.2g} to {gap:.2g} nats a token; "
                "a lower learning rate or dtype: float32 keeps them together",
                stacklevel=2,
            )
            self.first_gap = gap  # told once, until it grows as much again


class ConstantRewardGuard:
    """Warns once if every response gets the same reward several steps in a row: there is nothing to learn from."""

    PATIENCE = 3

    def __init__(self) -> None:
        self.steps_constant = 0

    def check(self, rewards: list[Any]) -> None:
        flat = [sum(r) if isinstance(r, list) else r for r in rewards]
        self.steps_constant = self.steps_constant + 1 if len(flat) > 1 and max(flat) - min(flat) < 1e-9 else 0
        if self.steps_constant == self.PATIENCE:
            warnings.warn(
                f"every response got the reward {flat[0]:g}, {self.PATIENCE} steps in a row: PPO has nothing to learn "
                "from. Look at the reward with `burnish reward-test`",
                stacklevel=2,
            )
