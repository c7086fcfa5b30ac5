"""Root-mean-square norms, with a gradient in as few passes over memory as the formula needs.

transformers writes the norm as five operations, and torch's gradient of them takes three times as many passes. The
numbers are the same; `adopt` puts this function in place of the modules' forward.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def adopt(module: nn.Module) -> None:
    """Gives a norm of the Llama kind (weight * x / rms(x)) the forward pass of this file."""
    if type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
        module.forward = MethodType(_norm, module)


def _norm(module: Any, x: Tensor) -> Tensor:
    if x.dtype != torch.float32 or module.weight.requires_grad:  # half precision goes through float32 and back
        return type(module).forward(module, x)
    return _RMSNorm.apply(x, module.weight, module.variance_epsilon)


class _RMSNorm(torch.autograd.Function):
    """y = w x s with s = (mean(x^2) + eps)^-1/2, for a frozen w; dx = s (w dy - x s^2 mean(x w dy)).  [..., H]"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # [..., 1]
        scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, scale, weight)
        return (x * scale).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        x, scale, weight = ctx.saved_tensors
        grad = grad * weight
        mean = (grad * x).mean(-1, keepdim=True)  # [..., 1]
        return grad.addcmul_(x, mean.mul_(scale).mul_(scale), value=-1).mul_(scale), None, None
