"""A GPU for machines without one: it computes nothing faster, but it has a GPU's rules.

A tensor on it is on torch's `meta` device as far as torch and burnish can tell, and carries its numbers in a CPU
tensor. Inside `with StandIn() as device`:

- an operation that mixes tensors of the two devices raises, as on CUDA. CPU tensors without dimensions may take part,
  and so may CPU tensors that index one of the device's;
- a tensor that is made without `device=` is the CPU's, and so is a random generator; either is refused there;
- whatever makes the host wait for the device is written down with the line of burnish that it happened in: numbers
  that go to the host, and results whose size the host must know (boolean masks, `nonzero`, `unique` ...).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

import burnish

DEVICE = torch.device("meta", 0)  # libraries have rules for `meta` itself
CPU = torch.device("cpu")
SOURCE = str(Path(burnish.__file__).parent)
FUSED = ["cpu", "cuda", DEVICE.type]  # devices that torch's AdamW has a kernel of its own for
aten = torch.ops.aten

COPIES = {aten._to_copy.default, aten.copy_.default}
INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
}
# What a GPU cannot do without telling the host a number first.
WAITS = {
    aten._local_scalar_dense.default: "a number is read",
    aten.equal.default: "a comparison is read",
    aten.nonzero.default: "the size of nonzero is read",
    aten.masked_select.default: "the size of a selection is read",
    aten._unique2.default: "the size of unique is read",
    aten.unique_dim.default: "the size of unique is read",
    aten.unique_consecutive.default: "the size of unique is read",
    aten.bincount.default: "the size of bincount is read",
    aten.repeat_interleave.Tensor: "the size of a repetition is read",
}


class OnDevice(Tensor):
    """A tensor of the device: a shell that says where it is, around the CPU tensor `numbers`."""

    numbers: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, numbers: Tensor) -> OnDevice:
        shell = Tensor._make_wrapper_subclass(
            cls,
            numbers.shape,
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=DEVICE,
        )
        shell.numbers = numbers
        return shell

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"OnDevice({self.numbers!r})"

    def tolist(self) -> Any:
        return self.cpu().tolist()  # torch's own takes no subclass

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} on a tensor of the stand-in device, which is switched off")


class StandIn(TorchDispatchMode):
    """The device while it is switched on. `waits` counts, by line of burnish, how often the host waited for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[tuple[str, str]] = Counter()
        self._generators: dict[int, torch.Generator] = {}
        makes, reads = torch.tensor, torch.as_tensor
        self._patches = [
            mock.patch.object(torch, "Generator", self._generator_maker(torch.Generator)),
            mock.patch.object(torch, "tensor", _placed(makes)),  # torch would leave out the numbers on `meta`
            mock.patch.object(torch, "as_tensor", _placed(reads)),
            mock.patch("torch.optim.optimizer._get_fused_kernels_supported_devices", return_value=FUSED),
        ]

    def __enter__(self) -> StandIn:
        for patch in self._patches:
            patch.start()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for patch in self._patches:
            patch.stop()

    @property
    def num_waits(self) -> int:
        return self.waits.total()

    def take_waits(self) -> Counter[tuple[str, str]]:
        """Those since this was asked last."""
        taken, self.waits = self.waits, Counter()
        return taken

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, shape = tree_flatten((args, kwargs or {}))
        tensors = [x for x in given if isinstance(x, Tensor)]
        ours = [x for x in tensors if isinstance(x, OnDevice)]
        asked = (kwargs or {}).get("device")
        here = bool(ours) if asked is None else torch.device(asked) == DEVICE
        if ours:
            self._check_places(func, args, tensors)
            reason = self._reason_to_wait(func, args, here)
            if reason:
                self.waits[reason, _line()] += 1
        if generator := (kwargs or {}).get("generator"):
            self._check_generator(func, generator, here)
        numbers_of = {id(x): x.numbers for x in ours}
        bare = [CPU if isinstance(x, torch.device) else numbers_of.get(id(x), x) for x in given]
        bare_args, bare_kwargs = tree_unflatten(bare, shape)
        out = func(*bare_args, **bare_kwargs)
        if not here:
            return out
        known = {id(x.numbers): x for x in ours}  # what was changed in place is still itself
        return tree_map(lambda x: _shelled(x, known), out)

    def _check_places(self, func: Any, args: Any, tensors: list[Tensor]) -> None:
        others = [x for x in tensors if not isinstance(x, OnDevice) and x.dim() > 0]
        if func in INDEXING and isinstance(args[0], OnDevice):
            indices = {id(x) for x in args[1]}
            others = [x for x in others if id(x) not in indices]
        if others and func not in COPIES:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {func} got one of shape {tuple(others[0].shape)} "
                f"on {others[0].device} beside those on {DEVICE} ({_line()})"
            )

    def _reason_to_wait(self, func: Any, args: Any, here: bool) -> str | None:
        if func in COPIES:
            to_host = not here if func is aten._to_copy.default else not isinstance(args[0], OnDevice)
            return "a tensor is copied to the host" if to_host and _any_ours(args) else None
        if func in INDEXING and any(isinstance(x, OnDevice) and x.dtype == torch.bool for x in args[1]):
            is_fill = func is not aten.index.Tensor and args[2].numel() == 1  # CUDA then fills by the mask itself
            return None if is_fill else "the size of a boolean mask is read"
        return WAITS.get(func)

    def _check_generator(self, func: Any, generator: torch.Generator, here: bool) -> None:
        if (generator._cdata in self._generators) != here:
            raise RuntimeError(f"{func}: the generator is not on the device of its result ({_line()})")

    def _generator_maker(self, make: Any) -> Callable[..., torch.Generator]:
        def generator(device: Any = "cpu") -> torch.Generator:
            made = make("cpu")
            if torch.device(device) == DEVICE:
                self._generators[made._cdata] = made
            return made

        return generator


def moved(model: nn.Module) -> nn.Module:
    """A model with its weights on the device, those that were tied still tied."""
    twins: dict[int, Tensor] = {}
    for module in model.modules():
        for name, own in [*module._parameters.items()]:
            if own is not None:
                twin = twins.setdefault(id(own), nn.Parameter(OnDevice(own.detach()), requires_grad=own.requires_grad))
                module._parameters[name] = twin
        for name, buffer in [*module._buffers.items()]:
            if buffer is not None:
                module._buffers[name] = OnDevice(buffer)
    return model


def _placed(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def tensor(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        if device is None or torch.device(device) != DEVICE:
            return make(data, *args, device=device, **kwargs)
        return make(data, *args, device="cpu", **kwargs).to(DEVICE)

    return tensor


def _shelled(x: Any, known: dict[int, OnDevice]) -> Any:
    if not isinstance(x, Tensor):
        return x
    return known[id(x)] if id(x) in known else OnDevice(x)


def _any_ours(args: Any) -> bool:
    return any(isinstance(x, OnDevice) for x in args)


def _line() -> str:
    """The innermost line of burnish that is being run."""
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith(SOURCE):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return "outside burnish"
    return f"{Path(frame.f_code.co_filename).relative_to(SOURCE)}:{frame.f_lineno} {frame.f_code.co_name}"
