"""The base's linear layers, with and without an adapter, in as few passes over memory as the arithmetic needs.

peft writes a LoRA layer as a chain of small modules: for every adapted layer that is a temporary of the output's size
for the adapter, one for its scaling and one for the sum, and the same again backwards. Here the adapter is added into
the base's own product. The numbers are the same; `adopt` puts these functions in place of the modules' forward.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn

# Up to this many rows (decoding) a CPU computes W x^T faster than x W^T: the weights are streamed, not repacked.
FEW_ROWS = 64


def adopt(module: nn.Module) -> None:
    """Gives a linear layer, plain or wrapped by peft, the forward pass of this file."""
    if type(module) is nn.Linear:
        module.forward = MethodType(_plain, module)  # type: ignore[method-assign]
    elif type(module) is LoraLinear:
        module.forward = MethodType(_adapted, module)


def times_weight(x: Tensor, weight: Tensor) -> Tensor:
    """x [N, in] @ weight [out, in] transposed -> [N, out]"""
    if x.shape[0] <= FEW_ROWS and x.device.type == "cpu":
        return (weight @ x.T).T
    return x @ weight.T


def _plain(module: nn.Linear, x: Tensor) -> Tensor:
    y = times_weight(x.reshape(-1, x.shape[-1]), module.weight)
    if module.bias is not None:
        y = y + module.bias
    return y.reshape(*x.shape[:-1], -1)


def _adapted(module: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """A layer with adapters: none active, one in the common form, or whatever else peft knows, which peft computes."""
    base = module.base_layer
    names = [name for name in module.active_adapters if name in module.lora_A]
    if module.disable_adapters or not (names or module.merged):
        return base(x)
    if len(names) > 1 or not _in_common_form(module, names[0]):
        return LoraLinear.forward(module, x, *args, **kwargs)
    a, b = module.lora_A[names[0]].weight, module.lora_B[names[0]].weight
    y = _LoraProduct.apply(x.reshape(-1, x.shape[-1]), base.weight, a, b, module.scaling[names[0]])
    if base.bias is not None:
        y = y + base.bias
    return y.reshape(*x.shape[:-1], -1)


def _in_common_form(module: Any, name: str) -> bool:
    """Frozen weight, one number format, no dropout at work, no bias in the adapter, no variant of LoRA."""
    weight, a, b = module.base_layer.weight, module.lora_A[name], module.lora_B[name]
    dropout = module.training and not isinstance(module.lora_dropout[name], nn.Identity)
    same_format = weight.dtype == a.weight.dtype == b.weight.dtype
    return not (module.merged or dropout or weight.requires_grad or b.bias is not None) and (
        same_format and name not in module.lora_variant
    )


class _LoraProduct(torch.autograd.Function):
    """x W^T + scaling * (x A^T) B^T, with gradients for x, A and B.  x [N, in] -> [N, out]"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, a: Tensor, b: Tensor, scaling: float) -> Tensor:
        low = times_weight(x, a)  # [N, r]
        ctx.save_for_backward(x, low, weight, a, b)
        ctx.scaling = scaling
        return times_weight(x, weight).addmm_(low, b.T, alpha=scaling)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, Tensor, Tensor, None]:
        x, low, weight, a, b = ctx.saved_tensors
        grad_low = (grad @ b).mul_(ctx.scaling)  # [N, r]
        grad_x = (grad @ weight).addmm_(grad_low, a) if ctx.needs_input_grad[0] else None
        return grad_x, None, grad_low.T @ x, (grad.T @ low).mul_(ctx.scaling), None
