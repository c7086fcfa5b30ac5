"""A base whose layers are spread over the processes of a run (FSDP2).

Each process holds a part of every layer, and a whole layer only while it computes with it: hooks ask for it before its
forward pass and before its backward pass, and processes/wire.py sees to it that all help to put it together, whoever
needs it. So nobody else has to know: whatever calls a layer has its weights, however many passes others make.

So are embeddings and the head that gives logits. Adapters are grafted later, and are not spread.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils._pytree import tree_leaves

from burnish.decoder.head import Head
from burnish.decoder.memory import give_back, give_back_at_once
from burnish.decoder.quantized import is_sharded, storages_in
from burnish.errors import InputError
from burnish.processes import wire


class LayerPiece(nn.Module):
    """The weights of a layer, or of modules that share some, as FSDP2 keeps them. This module is never called, so that
    FSDP does nothing by itself: when a layer is gathered and freed is decided here.
    """

    def __init__(self, *layers: nn.Module, **how: Any) -> None:
        super().__init__()
        from torch.distributed.fsdp import fully_shard

        self.layers = nn.ModuleList(layers)
        fully_shard(self, **how)  # makes it a module of FSDP's, with `unshard` and `reshard`

    def bring(self) -> None:
        self.drop()  # one that is whole here already would not take part
        self.unshard()  # type: ignore[operator]

    def drop(self) -> None:
        self.reshard()  # type: ignore[operator]


class SpreadHead(Head):
    """A head whose weight is put together when it is looked at."""

    def __init__(self, linear: Any, bias: Tensor | None, cap: float | None) -> None:
        number, device = linear.spread
        like = torch.empty(1, dtype=linear.weight.dtype, device=device).expand(linear.weight.shape)  # takes no memory
        for name, value in {"linear": linear, "number": number, "bias": bias, "cap": cap, "like": like}.items():
            object.__setattr__(self, f"_{name}" if name in ("linear", "number", "like") else name, value)

    @property
    def weight(self) -> Tensor:
        """[V, H]"""
        wire.fetch(self._number, again=is_sharded(self._linear.weight))  # type: ignore[attr-defined]
        return self._linear.weight  # type: ignore[attr-defined]

    @property
    def like(self) -> Tensor:
        return self._like  # type: ignore[attr-defined]


def shard(model: Any, layers: nn.ModuleList, device: torch.device, offload: bool) -> None:
    """Spreads the layers of a model over all processes. Afterwards it is on its device, layers apart if `offload`."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy

    if storages_in(model) or getattr(model, "hf_quantizer", None) is not None:
        raise InputError(
            "shard: true is for a base in plain numbers, and this one is stored in fewer bits, which FSDP cannot cut; "
            "leave shard out (a quantized base is small), or use the base as it was before it was quantized"
        )
    model.requires_grad_(False)
    how = {
        "mesh": init_device_mesh(device.type, (wire.here.size,)),
        "reshard_after_forward": True,
        "offload_policy": CPUOffloadPolicy(pin_memory=device.type == "cuda") if offload else OffloadPolicy(),
    }
    if device.type == "cpu":
        give_back_at_once()  # layers come and go with every pass
    elsewhere = _used_elsewhere(model, layers)
    for layer in dict.fromkeys(layers):  # a model may have one of them several times
        _watch(LayerPiece(layer, **how, ignored_params=elsewhere), device)
    embeddings, linear = model.get_input_embeddings(), model.get_output_embeddings()
    bias = {linear.bias} if getattr(linear, "bias", None) is not None else set()
    ends = [[embeddings, linear]] if embeddings.weight is linear.weight else [[embeddings], [linear]]
    for modules in ends:
        _watch(LayerPiece(*modules, **how, ignored_params=bias), device)
    for tensor in (*model.parameters(), *model.buffers()):
        if not is_sharded(tensor):
            tensor.data = tensor.data.to(device, copy=True)  # on its own: nothing holds on to the file any more
    give_back()


def nbytes_here(weight: Tensor) -> int:
    """Memory that a weight takes in this process."""
    return weight.to_local().nbytes if is_sharded(weight) else weight.nbytes  # type: ignore[attr-defined]


def largest_piece(model: nn.Module) -> int:
    """Bytes of the largest part that is put together at a time; 0 if the model is not sharded."""
    pieces: dict[int, dict[int, int]] = {}
    for module in model.modules():
        spread: Any = getattr(module, "spread", None)
        if spread is not None:
            weights = {id(weight): weight.nbytes for weight in module.parameters() if is_sharded(weight)}
            pieces.setdefault(spread[0], {}).update(weights)  # those that modules share count once
    return max((sum(own.values()) for own in pieces.values()), default=0)


def _used_elsewhere(model: nn.Module, layers: nn.ModuleList) -> set[nn.Parameter]:
    """Weights that belong to no layer, or to several."""
    owners: dict[nn.Parameter, int] = {}
    for layer in dict.fromkeys(layers):
        for weight in dict.fromkeys(layer.parameters()):
            owners[weight] = owners.get(weight, 0) + 1
    of_layers = {id(module) for layer in layers for module in layer.modules()}
    outside = (m for m in model.modules() if id(m) not in of_layers)
    shared = {weight for module in outside for weight in module.parameters(recurse=False)}
    return {weight for weight, count in owners.items() if count > 1} | shared


def _watch(piece: LayerPiece, device: torch.device) -> None:
    """Weights are there whenever a module computes with them."""
    number = wire.spread(piece)

    def before(*_: Any, piece: LayerPiece = piece) -> None:  # keeps the piece as long as there is the layer
        wire.fetch(number)

    def after(_: nn.Module, __: Any, output: Any) -> None:
        states = [t for t in tree_leaves(output) if isinstance(t, Tensor) and t.requires_grad]
        if states:
            register_multi_grad_hook(states, before, mode="any")

    for layer in piece.layers:
        layer.spread = (number, device)  # type: ignore[assignment]
        layer.register_forward_pre_hook(before)
        layer.register_forward_hook(after)
