"""Every family: what is shared, that responses are those of the model itself, and that PPO trains on it."""

import warnings

import pytest
import torch
from peft import PeftModel

from burnish import InputError, PPOTrainer, Sampler
from burnish.base_setup.lora_setup import unreachable
from burnish.decoder.decoder import CannotWalkError, Decoder
from burnish.decoder.shared_base import decoder_of
from burnish.decoder.whole_model import WholeModel
from families import FAMILIES, ON_THEIR_OWN, WALKED, family_model
from tiny import assert_says_the_same, count_vowels, perturb, tiny_config, tiny_tokenizer

PROMPTS = ["a long one, with more letters than a window has:", "short:", "another one, of a length in between:", "no:"]
SHARING = {
    family: "shared: prompt and trunk"
    if family in WALKED
    else "nothing shared: slower"
    if family in ON_THEIR_OWN
    else "shared: prompt"
    for family in FAMILIES
}


def trainer_of(family, scope, **changes):
    config = tiny_config(
        adapter_scope=scope, batch_size=4, max_new_tokens=8, lora_layers=2, top_k=0, top_p=1.0, **changes
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # GPT-2's weights lie the other way round, which peft says it has seen to
        return PPOTrainer(config, count_vowels, family_model(family), tiny_tokenizer())


def scopes_of(family):
    return ["sequence"] if SHARING[family].startswith("nothing") else ["response", "sequence"]


EVERYTHING = [(family, scope) for family in FAMILIES for scope in scopes_of(family)]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_shared_of_a_family(family):
    decoder = decoder_of(family_model(family))
    assert decoder.sharing == SHARING[family]
    assert isinstance(decoder, Decoder if family in WALKED else WholeModel)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_responses_are_those_of_the_model_itself(family):
    """Prompts of different lengths together, against transformers' own generation of each alone."""
    trainer = trainer_of(family, scopes_of(family)[0])
    pairs, _ = trainer.generator.generate_sequences(PROMPTS, None, Sampler(greedy=True))
    model = family_model(family)
    for row, prompt in enumerate(trainer.generator.encoder.encode(PROMPTS)):
        ids = torch.tensor([prompt])
        theirs = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=8,
            pad_token_id=0,
            eos_token_id=256,
        )
        length = int(pairs.mask[row].sum())
        assert pairs["action"][row, :length].tolist() == theirs[0, len(prompt) :].tolist()


@pytest.mark.parametrize(("family", "scope"), EVERYTHING)
def test_a_step_trains_the_adapter_alone_and_resumes_to_the_bit(family, scope):
    trainer, other = trainer_of(family, scope), trainer_of(family, scope)
    perturb(trainer, scale=0.1)
    before = {n: w.clone() for n, w in trainer.base.model.state_dict().items()}
    first = trainer.ppo_step(PROMPTS)
    assert first["first_ratio_error"] < 1e-3
    changed = {n for n, w in trainer.base.model.state_dict().items() if not torch.equal(w, before[n])}
    assert changed
    assert all(".policy." in n or ".value." in n for n in changed)
    other.restore(trainer.state())
    assert other.ppo_step(PROMPTS)["policy_loss"] == trainer.ppo_step(PROMPTS)["policy_loss"]
    for mine, theirs in zip(trainer.policy.parameters(), other.policy.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("family", FAMILIES)
def test_peft_loads_what_was_saved_and_says_the_same(family, tmp_path):
    trainer = trainer_of(family, "sequence")
    perturb(trainer, scale=0.1)
    pairs, _ = trainer.generator.generate_sequences(PROMPTS, torch.Generator().manual_seed(0))
    trainer.save(tmp_path / "run")
    theirs = PeftModel.from_pretrained(family_model(family), tmp_path / "run" / "adapters" / "policy").eval()
    assert_says_the_same(theirs, trainer.generator.encoder.encode(PROMPTS), pairs)


def test_a_state_that_cannot_be_shared_needs_the_whole_sequence():
    with pytest.raises(InputError, match=r"cannot go on .* keeps no keys and values.*adapter_scope: sequence"):
        trainer_of("mamba", "response")


def test_an_argument_that_our_attention_does_not_know_is_never_dropped():
    """Its layers tell their attention something that we do not know: the model is called as a whole."""
    model = family_model("llama")
    for layer in model.model.layers:
        forward = layer.self_attn.forward
        layer.self_attn.forward = lambda *given, forward=forward, **more: forward(*given, **more, mood=1.0)
    decoder = decoder_of(model)
    assert isinstance(decoder, WholeModel)
    assert decoder.reason == "its attention is called with mood"


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss"])
def test_attention_that_is_written_out_shares_no_prefix_between_responses(family):
    """With windows or without: the prompt would be left out in silence."""
    model = family_model(family)
    model.config.layer_types = ["full_attention"] * 4
    assert not decoder_of(model).reads_prefixes_together


def test_convolutions_are_not_taken_for_experts():
    assert unreachable(decoder_of(family_model("lfm2")).layers) == []
    assert unreachable(decoder_of(family_model("gpt_oss")).layers) == ["experts.gate_up_proj", "experts.down_proj"]


def test_a_model_that_is_walked_wrongly_is_left_as_it_was(monkeypatch):
    """A family that does something else between its layers: noticed, undone, and called as a whole."""
    model, untouched = family_model("granite"), family_model("granite")
    monkeypatch.setattr(Decoder, "embed", lambda self, ids: self.stack.embed_tokens(ids))
    before = model.config._attn_implementation
    with pytest.raises(CannotWalkError, match="does not continue a text"):
        Decoder(model)
    assert model.config._attn_implementation == before
    assert not any("forward" in vars(module) for module in model.modules())
    assert decoder_of(model).sharing == "shared: prompt"
    ids = torch.arange(10)[None]
    assert torch.equal(model(ids).logits, untouched(ids).logits)


@pytest.mark.parametrize("window", [5, 9, 100])
def test_windows_are_seen_even_where_they_are_long(window):
    """The check looks through small windows, whatever the model's own are; afterwards they are its own again."""
    model = family_model("mistral")
    model.config.sliding_window = window
    assert Decoder(model).config.sliding_window == window


def test_layers_that_see_something_else_are_noticed(monkeypatch):
    monkeypatch.setattr(Decoder, "_kinds", lambda self: ["full_attention"] * self.num_layers)
    with pytest.raises(CannotWalkError, match="logits come out differently"):
        Decoder(family_model("mistral"))
