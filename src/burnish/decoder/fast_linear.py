"""The base's linear layers, with and without an adapter, in as few passes over memory as the arithmetic needs.

peft writes a LoRA layer as a chain of small modules: for every adapted layer that is a temporary of the output's size
for the adapter, one for its scaling and one for the sum, and the same again backwards. Here the adapter is added into
the base's own product. The numbers are the same; `adopt` puts these functions in place of the modules' forward.

A weight that is stored in fewer bits is made dense for each product, forwards and backwards, and forgotten again:
between the two passes only the stored one is held.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from burnish.decoder.quantized import dense, is_plain, is_sharded, storage_of

# Up to this many rows (decoding) a CPU computes W x^T faster than x W^T: weights are streamed, not repacked. With 64
# rows AVX2 still gains, but AVX512 loses (benchmarks/tricks.py).
FEW_ROWS = 32


def adopt(module: nn.Module) -> None:
    """Gives a linear layer, plain, stored in fewer bits or wrapped by peft, the forward pass of this file."""
    if _is_plain_linear(module):
        module.forward = MethodType(_plain, module)
    elif type(module) is LoraLinear and _is_plain_linear(module.base_layer):
        module.forward = MethodType(_adapted, module)
    elif is_stored(module):
        module.forward = MethodType(_stored, module)
    elif isinstance(module, LoraLayer) and is_stored(module.base_layer):
        module.forward = MethodType(_adapted, module)


def is_stored(module: Any) -> bool:
    """Whether it is a linear layer whose weight is stored in fewer bits, in a way that is known."""
    return isinstance(module, nn.Linear) and storage_of(module.weight) is not None


def _is_plain_linear(module: Any) -> bool:
    return type(module) is nn.Linear and (is_plain(module.weight) or is_sharded(module.weight))


def times_weight(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [N, in] @ weight [out, in] transposed (+ bias [out]) -> [N, out]"""
    if x.shape[0] > FEW_ROWS or x.device.type != "cpu":
        return F.linear(x, weight, bias)
    y = weight @ x.T if bias is None else torch.addmm(bias[:, None], weight, x.T)
    return y.T


def _plain(module: nn.Linear, x: Tensor) -> Tensor:
    y = times_weight(x.reshape(-1, x.shape[-1]), module.weight, module.bias)
    return y.reshape(*x.shape[:-1], module.weight.shape[0])


def _stored(module: nn.Linear, x: Tensor) -> Tensor:
    y = _StoredProduct.apply(x.reshape(-1, x.shape[-1]), module.weight, module.bias)
    return y.reshape(*x.shape[:-1], module.out_features)


def _adapted(module: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """A layer with adapters: none active, one in the common form, or whatever else peft knows, which peft computes."""
    names = [name for name in module.active_adapters if name in module.lora_A]
    if module.merged or args or kwargs or len(names) > 1:
        return type(module).forward(module, x, *args, **kwargs)
    base = module.base_layer
    if module.disable_adapters or not names:
        return base(x)
    if not _in_common_form(module, names[0]):
        return type(module).forward(module, x)
    a, b = module.lora_A[names[0]].weight, module.lora_B[names[0]].weight
    y = _LoraProduct.apply(x.reshape(-1, x.shape[-1]), base.weight, base.bias, a, b, module.scaling[names[0]])
    return y.reshape(*x.shape[:-1], base.out_features)


def _in_common_form(module: Any, name: str) -> bool:
    """Frozen weight and bias, no dropout at work, no bias in the adapter, no variant of LoRA."""
    dropout = module.training and not isinstance(module.lora_dropout[name], nn.Identity)
    trained_base = any(p.requires_grad for p in module.base_layer.parameters())
    return not (dropout or trained_base or module.lora_B[name].bias is not None or name in module.lora_variant)


class _StoredProduct(torch.autograd.Function):
    """x W^T + bias, with a gradient for x alone.  x [N, in] -> [N, out]"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.weight = weight
        return times_weight(x, dense(weight, x.dtype), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad @ dense(ctx.weight, grad.dtype), None, None


class _LoraProduct(torch.autograd.Function):
    """x W^T + bias + scaling * (x A^T) B^T, with gradients for x, A and B.  x [N, in] -> [N, out]

    The adapter may be kept in float32 beside a base in half precision; it is computed in the base's format.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scaling: float
    ) -> Tensor:
        low = times_weight(x, a.to(x.dtype))  # [N, r]
        ctx.save_for_backward(x, low, a, b)
        ctx.weight, ctx.scaling = weight, scaling  # frozen, so it is there unchanged when gradients are computed
        return times_weight(x, dense(weight, x.dtype), bias).addmm_(low, b.T.to(x.dtype), alpha=scaling)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, Tensor, Tensor, None]:
        x, low, a, b = ctx.saved_tensors
        grad_low = (grad @ b.to(grad.dtype)).mul_(ctx.scaling)  # [N, r]
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = (grad @ dense(ctx.weight, grad.dtype)).addmm_(grad_low, a.to(grad.dtype))
        grad_a, grad_b = grad_low.T @ x, (grad.T @ low).mul_(ctx.scaling)
        return grad_x, None, None, grad_a.to(a.dtype), grad_b.to(b.dtype), None
