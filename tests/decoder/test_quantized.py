"""A base whose linear layers are stored in fewer bits: the library's own numbers, and PPO as on any other base."""

import warnings
import weakref
from importlib.util import find_spec

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from rich.console import Console
from torch import nn

from burnish import InputError, PPOTrainer, maths
from burnish.base_setup import quantization
from burnish.base_setup.base_setup import load_model
from burnish.decoder import fast_linear
from burnish.decoder.base_identity import base_weights, fingerprint_of_weights
from burnish.decoder.decoder import Decoder
from burnish.decoder.quantized import dense, storage_of
from burnish.decoder.whole_model import WholeModel
from burnish.models.adapter_files import load_adapter
from burnish.stages.models import describe
from families import family_model
from tiny import PROMPTS, assert_says_the_same, count_vowels, perturb, tiny_config, tiny_model, tiny_tokenizer

KINDS = [
    pytest.param(
        kind,
        marks=pytest.mark.skipif(find_spec(package) is None, reason=f'{package} is part of pip install "burnish[dev]"'),
    )
    for kind, package in quantization.PACKAGES.items()
]
INT8, NF4 = KINDS
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tiny_model(), tmp_path_factory.mktemp("plain"))


def saved(model, folder):
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def config_of(folder, kind, **changes):
    return tiny_config(**{"model_name": str(folder), "quantize": kind, "top_k": 0, "top_p": 1.0} | changes)


def trainer_on(folder, kind, **changes):
    return PPOTrainer(config_of(folder, kind, **changes), count_vowels)


def stored_layer(kind, bias=True, dtype=torch.float32):
    """A layer as its library makes it, and the numbers that it is made from."""
    torch.manual_seed(0)
    layer = nn.Linear(64, 24, bias=bias, dtype=dtype).requires_grad_(False)
    plain = layer.weight.clone()
    if kind == "int8":
        from torchao.quantization import Int8WeightOnlyConfig, quantize_

        quantize_(layer, Int8WeightOnlyConfig())
        return layer, plain
    from bitsandbytes.nn import Linear4bit, Params4bit

    stored = Linear4bit(64, 24, bias=bias, quant_type="nf4", compute_dtype=dtype)
    stored.weight = Params4bit(plain.clone(), quant_type="nf4", compress_statistics=False, module=stored)
    stored.bias = layer.bias
    return stored.to("cpu").requires_grad_(False), plain


def adapted_layer(kind):
    holder = nn.Sequential(stored_layer(kind)[0])
    holder.is_loaded_in_4bit = kind == "nf4"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft could not merge into it
        get_peft_model(holder, LoraConfig(r=4, lora_alpha=12, target_modules=["0"]))
    nn.init.normal_(holder[0].lora_B["default"].weight)
    return holder[0]


# ----------------------------------------------------------------------------------------------------------- products


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_stored_weight_stands_for_the_numbers_that_its_format_says(kind, dtype):
    layer, plain = stored_layer(kind, dtype=dtype)
    assert storage_of(layer.weight) == kind
    numbers = dense(layer.weight, dtype)
    if kind == "int8":
        assert torch.equal(numbers, layer.weight.dequantize())
        steps = plain.float().abs().amax(1, keepdim=True) / 127.5  # a row's largest number takes all of a byte
        assert ((numbers.float() - plain.float()).abs() <= 0.51 * steps + 0.004 * plain.float().abs()).all()
    else:
        state, packed = layer.weight.quant_state, layer.weight.data.flatten()
        nibbles = torch.stack([packed >> 4, packed & 15], 1).flatten().long()  # two to a byte, the first one on top
        by_hand = state.code[nibbles].reshape(-1, 64) * state.absmax[:, None]
        assert torch.equal(numbers, by_hand.to(dtype).reshape(24, 64))
        assert (numbers.float() - plain.float()).norm() < 0.1 * plain.float().norm()


@every_kind
@pytest.mark.parametrize("num_rows", [3, fast_linear.FEW_ROWS + 3])
@pytest.mark.parametrize("bias", [False, True])
def test_a_stored_layer_gives_what_its_library_gives(kind, num_rows, bias):
    layer, _ = stored_layer(kind, bias)
    x = torch.randn(num_rows, 64)
    theirs = with_gradient(layer, x)
    fast_linear.adopt(layer)
    assert "forward" in vars(layer)
    torch.testing.assert_close(with_gradient(layer, x), theirs)


@every_kind
@pytest.mark.parametrize("num_rows", [3, fast_linear.FEW_ROWS + 3])
def test_an_adapter_on_a_stored_layer_is_pefts(kind, num_rows):
    adapted = adapted_layer(kind)
    x = torch.randn(num_rows, 64)
    theirs = with_gradient(adapted, x)
    fast_linear.adopt(adapted)
    assert "forward" in vars(adapted)
    ours = with_gradient(adapted, x)
    assert len(ours) == 4  # result, and the gradients of x, A and B
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)  # sums of hundreds of products, in another order


def with_gradient(module, x):
    x = x.clone().requires_grad_()
    y = module(x)
    (y * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).sum().backward()
    found = [y.detach(), x.grad, *(p.grad.clone() for p in module.parameters() if p.grad is not None)]
    module.zero_grad()
    return found


@every_kind
@pytest.mark.parametrize("adapted", [False, True])
def test_no_dense_weight_waits_for_its_gradient(kind, adapted, monkeypatch):
    layer = adapted_layer(kind) if adapted else stored_layer(kind)[0]
    made = []

    def watched(*given):
        numbers = dense(*given)
        made.append(weakref.ref(numbers))
        return numbers

    monkeypatch.setattr(fast_linear, "dense", watched)
    fast_linear.adopt(layer)
    y = layer(torch.randn(40, 64, requires_grad=True))
    assert [numbers() for numbers in made] == [None]
    y.sum().backward()
    assert len(made) == 2


def test_what_is_stored_in_another_way_is_left_to_its_library():
    pytest.importorskip("torchao")
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    layer = nn.Linear(64, 24).requires_grad_(False)
    quantize_(layer, Int8DynamicActivationInt8WeightConfig())
    fast_linear.adopt(layer)
    assert storage_of(layer.weight) is None
    assert "forward" not in vars(layer)


# ---------------------------------------------------------------------------------------------------------------- PPO


@every_kind
@pytest.mark.parametrize("scope", ["response", "sequence"])
def test_a_step_trains_the_adapters_alone_and_resumes_to_the_bit(kind, scope, folder):
    trainer, other = (trainer_on(folder, kind, adapter_scope=scope) for _ in range(2))
    assert isinstance(trainer.base.decoder, Decoder)
    assert trainer.base.identity.dtype == f"float32 and {kind}"
    before = fingerprint_of_weights(base_weights(trainer.base.model))
    first = trainer.ppo_step(PROMPTS)
    assert first["first_ratio_error"] < 1e-5
    assert abs(first["kl"]) < 1e-5  # policy and reference stand on the same stored base
    perturb(trainer, scale=0.1)
    adapters = [p.clone() for p in trainer.policy.parameters()]
    second = trainer.ppo_step(PROMPTS)
    assert second["first_ratio_error"] < 1e-4
    assert second["kl"] > 0.01
    assert any(not torch.equal(p, q) for p, q in zip(trainer.policy.parameters(), adapters, strict=True))
    assert fingerprint_of_weights(base_weights(trainer.base.model)) == before == trainer.base.identity.weights
    other.restore(trainer.state())
    assert other.ppo_step(PROMPTS)["policy_loss"] == trainer.ppo_step(PROMPTS)["policy_loss"]
    for mine, theirs in zip(trainer.policy.parameters(), other.policy.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@every_kind
def test_a_model_that_is_called_as_a_whole_is_trained_too(kind, tmp_path):
    trainer = trainer_on(saved(family_model("gpt_neox"), tmp_path), kind, lora_layers=2)
    assert isinstance(trainer.base.decoder, WholeModel)
    assert fast_linear.is_stored(trainer.base.decoder.layers[0].mlp.dense_h_to_4h)
    assert "forward" in vars(trainer.base.decoder.layers[0].mlp.dense_h_to_4h)
    before = fingerprint_of_weights(base_weights(trainer.base.model))
    assert trainer.ppo_step(PROMPTS)["first_ratio_error"] < 1e-4
    assert fingerprint_of_weights(base_weights(trainer.base.model)) == before


@every_kind
def test_peft_loads_the_adapter_on_the_stored_base_and_on_the_plain_one(kind, folder, tmp_path):
    trained = trainer_on(folder, kind, adapter_scope="sequence")
    perturb(trained, scale=0.1)
    trained.save(tmp_path / "run")
    adapter = tmp_path / "run" / "adapters" / "policy"
    for base in (kind, None):
        trainer = trainer_on(folder, base, adapter_scope="sequence")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the other number format
            load_adapter(trainer.base, "policy", adapter)
        pairs, _ = trainer.generator.generate_sequences(PROMPTS, torch.Generator().manual_seed(0))
        theirs = PeftModel.from_pretrained(load_model(config_of(folder, base)), adapter).eval()
        assert_says_the_same(theirs, trainer.generator.encoder.encode(PROMPTS), pairs)


@pytest.mark.parametrize("kind", [INT8])
def test_a_stored_base_says_nearly_what_the_plain_one_says(kind, folder):
    """Four bits are too few for random weights, which have none of a trained model's margins."""
    ids = torch.tensor([tiny_tokenizer()(" ".join(PROMPTS))["input_ids"]])
    with torch.no_grad():
        stored, plain = (load_model(config_of(folder, k))(ids).logits[0].log_softmax(-1) for k in (kind, None))
    assert 1e-5 < maths.exact_kl(plain, stored).mean() < 0.01  # measured: 0.0013 nats


@every_kind
def test_an_adapter_knows_which_base_it_was_trained_on(kind, folder, tmp_path):
    trainer_on(folder, kind).save(tmp_path / "run")
    adapter = tmp_path / "run" / "adapters" / "policy"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_adapter(trainer_on(folder, kind).base, "policy", adapter)
    with pytest.warns(UserWarning, match=rf"another number format \(float32 and {kind}, here float32, so weights"):
        load_adapter(trainer_on(folder, None).base, "policy", adapter)
    other = saved(tiny_model(seed=1), tmp_path / "other")
    with pytest.raises(InputError, match="does not fit this base model"):
        load_adapter(trainer_on(other, kind).base, "policy", adapter)


@every_kind
def test_a_fingerprint_that_was_kept_for_the_plain_base_is_not_the_stored_ones(kind, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("burnish.base_setup.kept_fingerprints.SETTLED_SECONDS", -1e9)
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path))
    plain, stored, again = (trainer_on(folder, way).base.identity.weights for way in (None, kind, kind))
    assert plain != stored == again
    assert len(list((tmp_path / "fingerprints").iterdir())) == 2


# ------------------------------------------------------------------------------------------------------------- memory


@every_kind
def test_memory_is_told_as_it_is_stored(kind, folder):
    # Tiny: a layer has q and o of 32 x 32, k and v of 16 x 32, gate and up of 64 x 32, down of 32 x 64.
    numbers = 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32)
    rows = 2 * (2 * 32 + 2 * 16 + 2 * 64 + 32)
    rest = 4 * (258 * 32 + 5 * 32)  # embedding and norms
    (_, megabytes, _), *_ = trainer_on(folder, kind).memory_report()
    if kind == "int8":
        assert megabytes * 2**20 == numbers + 5 * rows + rest
    else:  # beside the scales, a table of 16 numbers and a note for each layer
        assert 0 < megabytes * 2**20 - (numbers / 2 + 4 * numbers / 64 + rest) < 14 * 250
    told = (numbers + 5 * rows if kind == "int8" else numbers / 2 + 4 * numbers / 64) + rest
    assert f"{told / 2**10:.0f} kB with {'quantize: ' if kind == 'int8' else ''}{kind}" in described(folder)


def described(folder):
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    describe(console, str(folder))
    return console.export_text()


# ------------------------------------------------------------------------------------------- bases stored so on disk


@every_kind
def test_a_base_that_is_stored_so_on_disk_is_the_same_base(kind, folder, tmp_path):
    stored = load_model(config_of(folder, kind))
    on_disk = saved(stored, tmp_path)
    trainer = trainer_on(on_disk, None)
    assert trainer.base.identity.dtype == f"float32 and {kind}"
    assert trainer.base.identity.weights == fingerprint_of_weights(base_weights(stored))
    assert trainer.ppo_step(PROMPTS)["first_ratio_error"] < 1e-5
    assert f"already, by {quantization.PACKAGES[kind]}" in described(on_disk)
    with pytest.raises(InputError, match=r"is stored quantised already, by \w+; leave quantize out"):
        load_model(config_of(on_disk, kind))


@every_kind
def test_a_base_that_was_stored_from_half_precision_computes_in_the_runs_format(kind, folder, tmp_path):
    on_disk = saved(load_model(config_of(folder, kind, dtype="bfloat16")), tmp_path)
    trainer = trainer_on(on_disk, None, dtype="float32")
    assert isinstance(trainer.base.decoder, Decoder), trainer.base.decoder.reason  # the model's own numbers, to 1e-4
    assert trainer.base.identity.dtype == f"float32 and {kind}"
    assert trainer.ppo_step(PROMPTS)["first_ratio_error"] < 1e-5


@pytest.mark.parametrize("kind", [NF4])
def test_a_cpu_with_bfloat16_products_repacks_nothing(kind, folder, monkeypatch):
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: True)
    model = load_model(config_of(folder, kind)).eval()
    packed = model.model.layers[0].mlp.up_proj.weight.data.clone()
    with torch.no_grad():
        model(torch.tensor([[1, 2, 3]]))
    assert torch.equal(model.model.layers[0].mlp.up_proj.weight.data, packed)


@pytest.mark.parametrize("kind", [NF4])
def test_a_base_that_is_stored_in_another_way_is_refused(kind, folder, tmp_path):
    """LLM.int8() rounds what it multiplies with, and by which numbers are beside it."""
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    how = BitsAndBytesConfig(load_in_8bit=True)
    on_disk = saved(AutoModelForCausalLM.from_pretrained(folder, quantization_config=how), tmp_path)
    with pytest.raises(InputError, match="stored quantised by bitsandbytes, in a way that burnish does not train on"):
        load_model(config_of(on_disk, None))


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("kind", quantization.PACKAGES)
def test_a_library_that_is_not_there_is_named(kind, folder, monkeypatch):
    monkeypatch.setattr(quantization, "find_spec", lambda name: None)
    package = quantization.PACKAGES[kind]
    with pytest.raises(InputError, match=rf'quantize: {kind} needs the package {package}.*pip install "burnish\[quant'):
        trainer_on(folder, kind)


@every_kind
def test_a_device_that_cannot_run_it_is_told(kind, folder, monkeypatch):
    def no_kernel(*_, **__):
        raise NotImplementedError("no kernel for this device\nand a long explanation")

    place = "torchao.quantization.quantize_" if kind == "int8" else "bitsandbytes.functional.quantize_4bit"
    monkeypatch.setattr(place, no_kernel)
    with pytest.raises(InputError, match=rf"quantize: {kind} does not run on cpu \(no kernel for this device\); use"):
        load_model(config_of(folder, kind))


@every_kind
def test_a_device_that_gives_other_numbers_is_told(kind, folder, monkeypatch):
    if kind == "int8":
        monkeypatch.setattr("torchao.quantization.Int8Tensor.dequantize", lambda self: torch.zeros(self.shape))
    else:
        monkeypatch.setattr("bitsandbytes.functional.dequantize_4bit", lambda *_: torch.zeros(64, 64))
    with pytest.raises(InputError, match=rf"quantize: {kind} gives wrong numbers on cpu"):
        load_model(config_of(folder, kind))


@pytest.mark.parametrize("kind", [INT8])
def test_a_model_without_linear_layers_is_refused(kind, tmp_path):
    """GPT-2's are transformers' own."""
    with pytest.raises(InputError, match=r"no linear layer of .* could be stored as int8.*; leave quantize out"):
        load_model(config_of(saved(family_model("gpt2"), tmp_path), kind))


@pytest.mark.parametrize("kind", quantization.PACKAGES)
def test_a_model_given_as_it_is_cannot_be_stored_otherwise(kind):
    with pytest.raises(InputError, match=rf"quantize: {kind} is for a model that is loaded by its name"):
        PPOTrainer(tiny_config(quantize=kind), count_vowels, tiny_model(), tiny_tokenizer())
