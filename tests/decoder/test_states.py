"""Convolutions and recurrences: the prompt is read once for them too, and adapters begin to act behind its state."""

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict

from burnish import PPOTrainer, SAPairs
from burnish.decoder.model_cache import InOurCache
from burnish.decoder.shared_base import decoder_of
from families import WITH_STATES, family_model
from tiny import count_vowels, perturb, tiny_config, tiny_tokenizer, tiny_trainer

PROMPTS = ["what is the longest of them all:", "this:", "what is the shortest of them:", "what is the second:", ":"]
RESPONSES = ["one that is not short", "a", "two", "and so on", "the prompt is one token"]


def trainer_of(family, **changes):
    config = tiny_config(adapter_scope="response", top_k=0, top_p=1.0, batch_size=4, max_new_tokens=8, **changes)
    trainer = PPOTrainer(config, count_vowels, family_model(family), tiny_tokenizer())
    perturb(trainer, scale=0.1)
    return trainer


def tokens(trainer, texts):
    return [trainer.base.tokenizer(text)["input_ids"] for text in texts]


@pytest.mark.parametrize("family", WITH_STATES)
def test_log_probabilities_and_gradients_are_those_of_an_activated_lora(family):
    """peft's own, in one pass over the whole text without any cache: what it read before the adapter is in its graph.

    Prompts of different lengths, one of them all adapted, stand beside each other.
    """
    trainer = trainer_of(family)
    base, prompts, responses = trainer.base, tokens(trainer, PROMPTS), tokens(trainer, RESPONSES)
    base.act_from(tokens(trainer, [":"])[0])
    pairs = SAPairs.of_tokens(prompts, responses)
    ours = trainer.policy.logprobs(pairs)
    (ours * pairs.mask).sum().backward()
    own = base.peft_model.peft_config["policy"]
    lora = LoraConfig(
        task_type="CAUSAL_LM",
        alora_invocation_tokens=base.invocation,
        **{key: getattr(own, key) for key in ("r", "lora_alpha", "target_modules", "layers_to_transform")},
    )
    theirs = get_peft_model(family_model(family), lora).eval()
    set_peft_model_state_dict(theirs, get_peft_model_state_dict(base.peft_model, adapter_name="policy"))
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        logits = theirs(torch.tensor([prompt + response]), alora_offsets=[1 + len(response)]).logits[0]
        chosen = logits[len(prompt) - 1 : -1].log_softmax(1).gather(1, torch.tensor(response)[:, None])[:, 0]
        torch.testing.assert_close(ours[row, : len(response)], chosen, atol=1e-4, rtol=1e-4)
        chosen.sum().backward()
    gradients = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    assert len(gradients) == len(trainer.policy.parameters()) > 0
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    mine = dict(base.peft_model.named_parameters())
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            mine[name.replace(".default.", ".policy.")].grad, gradient, atol=1e-4 * largest, rtol=1e-3
        )


@pytest.mark.parametrize("family", WITH_STATES)
def test_how_prompts_are_read_changes_nothing(family):
    """One by one and kept, several of one length together, or behind a beginning that was read once for all."""
    prompts = [f"what is, to be quite sure, the {which}:" for which in ("longest", "lowest!", "first", "s")]
    kept, together, begun = (trainer_of(family, prompt_cache_mb=mb) for mb in (64, 0, 64))
    pairs = SAPairs.of_tokens(tokens(kept, prompts), tokens(kept, ["a", "b", "c", "d"]))
    begun.base.agree_on_beginning(tokens(begun, prompts))
    expected = kept.policy.logprobs(pairs)
    torch.testing.assert_close(together.policy.logprobs(pairs), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(begun.policy.logprobs(pairs), expected, atol=1e-5, rtol=1e-5)
    widths = [len(p) - 1 for p in tokens(kept, prompts)]
    assert kept.base.num_prompt_tokens_read == together.base.num_prompt_tokens_read == sum(widths)
    size = len("what is, to be quite sure, the ")
    assert begun.base.num_prompt_tokens_read == size + sum(width - size for width in widths)


@pytest.mark.parametrize("family", WITH_STATES)
def test_a_prompt_that_comes_back_is_not_read_again_and_the_answer_is_the_same(family):
    trainer = trainer_of(family)
    first = trainer.generator.generate_sequences(PROMPTS, torch.Generator().manual_seed(0))[0]
    read = trainer.base.num_prompt_tokens_read
    again = trainer.generator.generate_sequences(PROMPTS, torch.Generator().manual_seed(0))[0]
    assert trainer.base.num_prompt_tokens_read == read > 0
    assert torch.equal(first["action"], again["action"])
    assert torch.equal(first["logprob"], again["logprob"])
    scored = trainer.policy.logprobs(again)
    torch.testing.assert_close(scored[again.mask], again["logprob"][again.mask], atol=1e-4, rtol=1e-4)


def test_states_count_as_memory():
    """By hand, for two layers of a gated delta net and two of attention."""
    base = trainer_of("qwen3_5_text").base
    # A convolution keeps 4 inputs of 2 * (2 * 8) + 4 * 8 channels, a recurrence 4 matrices of 8 times 8.
    state = 2 * 4 * (4 * 64 + 4 * 8 * 8)
    assert base.decoder.state_bytes == state
    assert base.key_bytes == 2 * 4 * 2 * (2 * 8)  # keys and values of 2 heads, in the layers of attention alone
    (reading,) = base._prefill([(1, 2, 3)])
    assert reading.nbytes == state + 3 * base.key_bytes
    assert base.state_cost == 2 * state / base.activation_bytes


def test_what_a_training_pass_keeps_is_found_out_where_no_formula_knows_it():
    """On the fast path the two agree; with adapters on one layer of four, nothing is kept of those below."""
    base = tiny_trainer().base
    assert base._kept_by_a_pass() == pytest.approx(base.activation_bytes, rel=0.2)
    whole, top = (trainer_of("lfm2", lora_layers=layers).base for layers in ("all", 1))
    assert 0.15 * whole.activation_bytes < top.activation_bytes < 0.35 * whole.activation_bytes
    experts = PPOTrainer(tiny_config(), count_vowels, family_model("qwen3_moe"), tiny_tokenizer()).base
    assert experts.activation_bytes == experts._kept_by_a_pass()
    assert experts.activation_bytes > 4 * 4 * 8 * 32  # of each of four layers at least eight vectors of 32 numbers


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("get_recurrent_state", "does not continue a text"),
        ("get_conv_state", "does not continue a text"),
        ("keep", "does not decode token by token"),
        ("detach", "gradients come out differently"),
    ],
)
def test_a_state_that_gets_lost_is_noticed(broken, reason, monkeypatch):
    """And the model is left with nothing shared, which says why."""
    if broken == "keep":
        keep = InOurCache._keep
        monkeypatch.setattr(InOurCache, "_keep", lambda c, *given: hasattr(c.cache, "room") or keep(c, *given))
    elif broken == "detach":
        update = InOurCache.update_conv_state
        monkeypatch.setattr(InOurCache, "update_conv_state", lambda *a, **k: update(*a, **k).detach())
    else:
        monkeypatch.setattr(InOurCache, broken, lambda self, layer_idx, state_idx=0: None)
    decoder = decoder_of(family_model("qwen3_5_text"))
    assert decoder.sharing == "nothing shared: slower"
    assert reason in decoder.reason
    assert decoder.state_bytes == decoder.num_key_layers == 0
