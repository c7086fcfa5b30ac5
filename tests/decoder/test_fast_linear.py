"""Linear layers the fast way: the numbers and gradients of peft's own forward pass."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import Linear as LoraLinear
from torch import nn

from burnish.decoder import fast_linear


def adapted_layer(bias=False, **lora):
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(12, 20, bias=bias)).requires_grad_(False).double()
    settings = {"r": 4, "lora_alpha": 12, "target_modules": ["0"], **lora}
    get_peft_model(layer, LoraConfig(**settings)).double()
    wrapped = layer[0]
    nn.init.normal_(wrapped.lora_B["default"].weight)
    return wrapped


def gradients(module, forward, x):
    x = x.clone().requires_grad_()
    y = forward(x)
    (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)).sum().backward()
    found = [y.detach(), x.grad, *(p.grad.clone() for p in module.parameters() if p.grad is not None)]
    module.zero_grad()
    return found


@pytest.mark.parametrize("num_rows", [3, fast_linear.FEW_ROWS + 3])
@pytest.mark.parametrize("bias", [False, True])
def test_adapted_layer_is_pefts(num_rows, bias):
    layer = adapted_layer(bias)
    x = torch.randn(num_rows, 2, 12, dtype=torch.float64)
    theirs = gradients(layer, lambda x: LoraLinear.forward(layer, x), x)
    fast_linear.adopt(layer)
    ours = gradients(layer, layer, x)
    assert len(ours) == len(theirs) == 4  # result, and the gradients of x, A and B
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("num_rows", [3, fast_linear.FEW_ROWS + 3])
@pytest.mark.parametrize("bias", [False, True])
def test_plain_layer_is_torchs(num_rows, bias):
    layer = nn.Linear(12, 20, bias=bias).double()
    x = torch.randn(num_rows, 2, 12, dtype=torch.float64)
    expected = layer(x)
    fast_linear.adopt(layer)
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("change", ["disabled", "merged", "merged and disabled", "dropout", "dora", "two adapters"])
def test_anything_uncommon_is_left_to_peft(change):
    layer = adapted_layer(lora_dropout=0.5, use_dora=change == "dora").eval()
    if change == "two adapters":
        layer.update_layer("second", 4, 12, config=LoraConfig(r=4, lora_alpha=12))
        nn.init.normal_(layer.double().lora_B["second"].weight)
        layer.set_adapter(["default", "second"])
    if "merged" in change:
        layer.merge()
    if "disabled" in change:
        layer._disable_adapters = True  # enable_adapters would unmerge
    if change == "dropout":
        layer.train()
    x = torch.randn(5, 12, dtype=torch.float64)
    torch.manual_seed(1)
    expected = LoraLinear.forward(layer, x)
    fast_linear.adopt(layer)
    torch.manual_seed(1)
    torch.testing.assert_close(layer(x), expected)


def test_a_float32_adapter_beside_a_half_precision_base():
    """How a GPU holds them: computed in the base's format, gradients in the adapter's."""
    layer = adapted_layer(bias=True).float()
    layer.base_layer.bfloat16()
    x = torch.randn(9, 12).bfloat16()
    theirs = gradients(layer, lambda x: LoraLinear.forward(layer, x), x)
    fast_linear.adopt(layer)
    ours = gradients(layer, layer, x)
    assert [t.dtype for t in ours] == [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]
    torch.testing.assert_close(ours, theirs, atol=0.1, rtol=0.05)
