"""The norm in few passes: the module's own numbers, and its gradient."""

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from burnish.decoder import fast_norm


@pytest.fixture
def norm():
    module = LlamaRMSNorm(8, eps=1e-5)
    module.weight.data = torch.randn(8, generator=torch.Generator().manual_seed(1))
    return module.requires_grad_(False)


def test_value_and_gradient_are_the_modules_own(norm):
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    upstream = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(2))
    theirs = norm(x)
    (their_gradient,) = torch.autograd.grad((theirs * upstream).sum(), x)
    fast_norm.adopt(norm)
    ours = norm(x)
    (gradient,) = torch.autograd.grad((ours * upstream).sum(), x)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradient, their_gradient)
    assert torch.autograd.gradcheck(
        lambda y: fast_norm._RMSNorm.apply(y, norm.weight.double(), 1e-5), x.detach().double().requires_grad_()
    )


def test_half_precision_and_trained_weights_are_left_to_the_module(norm):
    x = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    theirs = norm(x.bfloat16())
    fast_norm.adopt(norm)
    assert torch.equal(norm(x.bfloat16()), theirs)
    norm.weight.requires_grad_(True)
    norm(x).sum().backward()
    assert norm.weight.grad is not None
