"""Generation: what is sampled, what it costs, and that scoring it later gives the same log-probabilities."""

import pytest
import torch

from burnish import DivergedError, InputError, PPOTrainer, Sampler, SAPairBuilder
from burnish.decoder.head import MAX_GATHERED_ROWS, Head, selected_logprobs
from burnish.rollout.sampling import draw
from tiny import (
    PROMPTS,
    count_vowels,
    encoded,
    generate,
    perturb,
    tiny_config,
    tiny_model,
    tiny_tokenizer,
    tiny_trainer,
)

GREEDY = Sampler(greedy=True)


def responses(rollout):
    return [a[m].tolist() for a, m in zip(rollout.action, rollout.mask, strict=True)]


@pytest.mark.parametrize("scope", ["response", "sequence"])
def test_left_padded_prompts_give_the_tokens_they_give_alone(scope):
    trainer = tiny_trainer(adapter_scope=scope, max_new_tokens=12)
    perturb(trainer)
    prompts = encoded(trainer)
    together = responses(generate(trainer.policy, prompts, 12, GREEDY))
    alone = [responses(generate(trainer.policy, [p], 12, GREEDY))[0] for p in prompts]
    assert together == alone
    assert len({tuple(r) for r in together}) > 4  # the prompts matter, so equality says something


def test_greedy_tokens_are_those_of_transformers_generate():
    trainer = tiny_trainer()
    reference = tiny_model()
    for prompt in encoded(trainer):
        ours = responses(generate(trainer.policy, [prompt], 12, GREEDY))[0]
        theirs = reference.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=12, do_sample=False
        )
        assert ours == theirs[0, len(prompt) :].tolist()


@pytest.mark.parametrize("scope", ["response", "sequence"])
@pytest.mark.parametrize("lora_layers", ["all", 1])
@pytest.mark.parametrize(("top_k", "top_p"), [(50, 0.95), (0, 1.0), (258, 0.9), (5, 1.0)])
def test_training_pass_reproduces_the_sampled_logprobs(scope, lora_layers, top_k, top_p):
    """In float64, so that only a difference in what is computed shows, not one in the order of rounding."""
    settings = {"adapter_scope": scope, "lora_layers": lora_layers, "top_k": top_k, "top_p": top_p, "temperature": 0.8}
    trainer = PPOTrainer(tiny_config(**settings), count_vowels, tiny_model().double(), tiny_tokenizer())
    perturb(trainer)
    sampler, generator = trainer.generator.sampler, torch.Generator().manual_seed(0)
    rollout = generate(trainer.policy, encoded(trainer), 10, sampler, generator)
    again = trainer.policy.logprobs(SAPairBuilder().build(rollout, trainer.policy))
    torch.testing.assert_close(again.float(), rollout.logprob, atol=2e-6, rtol=0)


def test_wide_kept_sets_are_scored_like_narrow_ones():
    g = torch.Generator().manual_seed(0)
    hidden, head = torch.randn(300, 16, generator=g), torch.randn(4 * MAX_GATHERED_ROWS, 16, generator=g)
    sampled = Sampler(top_p=0.999)(hidden @ head.T, g)
    assert sampled.kept.shape[1] > MAX_GATHERED_ROWS
    torch.testing.assert_close(selected_logprobs(hidden, Head(head), sampled.action, sampled.kept), sampled.logprob)


def test_tokens_are_drawn_by_their_probability():
    p = torch.tensor([0.5, 0.0, 0.3, 0.2, 0.0])
    drawn = draw(p.repeat(100_000, 1), torch.Generator().manual_seed(0)).squeeze(1)
    share = drawn.bincount(minlength=5) / len(drawn)
    assert share[[1, 4]].tolist() == [0, 0]  # never what cannot be, not even at the end
    torch.testing.assert_close(share, p, atol=0.005, rtol=0)  # three standard errors


@pytest.mark.parametrize("sampler", [Sampler(), Sampler(top_k=7), Sampler(top_p=0.999)], ids=["whole", "few", "many"])
def test_logprobs_and_their_gradients_are_those_of_a_plain_softmax(sampler):
    """More states than one chunk holds, kept sets of any size."""
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(300, 16, generator=g, dtype=torch.float64).requires_grad_()
    head = torch.randn(4 * MAX_GATHERED_ROWS, 16, generator=g, dtype=torch.float64)
    sampled = sampler((hidden @ head.T).detach(), g)
    weight = torch.randn(300, generator=g)
    scored = selected_logprobs(hidden, Head(head), sampled.action, sampled.kept, 0.7)
    (gradient,) = torch.autograd.grad((scored * weight).sum(), hidden)
    z = hidden @ head.T / 0.7
    if sampled.kept is not None:
        allowed = torch.zeros_like(z, dtype=torch.bool).scatter(1, sampled.kept.long().clamp(min=0), True)
        allowed[:, 0] = (sampled.kept == 0).any(1)
        z = z.masked_fill(~allowed, -torch.inf)
    plain = z.log_softmax(-1).gather(1, sampled.action[:, None]).squeeze(1)
    (expected,) = torch.autograd.grad((plain * weight).sum(), hidden)
    torch.testing.assert_close(scored.double(), plain, atol=1e-5, rtol=0)
    torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=0)


def test_half_precision_logprobs_are_rounded_once():
    """Scoring a bfloat16 model over the whole vocabulary: logits are bfloat16, everything after them is float32."""
    g = torch.Generator().manual_seed(0)
    hidden, head = torch.randn(9, 16, generator=g).bfloat16(), torch.randn(40, 16, generator=g).bfloat16()
    sampled = Sampler(temperature=0.7)(hidden @ head.T, g)
    scored = selected_logprobs(hidden, Head(head), sampled.action, None, 0.7)
    assert scored.dtype == torch.float32
    torch.testing.assert_close(scored, sampled.logprob)


@pytest.mark.parametrize("kept", [True, False])
def test_logprob_gradient_is_that_of_a_plain_softmax(kept):
    g = torch.Generator().manual_seed(0)
    hidden, head = torch.randn(9, 16, generator=g, requires_grad=True), torch.randn(40, 16, generator=g)
    sampled = Sampler(temperature=0.7, top_k=6 if kept else 0)(hidden.detach() @ head.T, g)
    z = hidden @ head.T / 0.7
    if kept:
        allowed = torch.zeros_like(z, dtype=torch.bool).scatter(1, sampled.kept.long(), True)
        z = z.masked_fill(~allowed, -torch.inf)
    expected = z.log_softmax(1).gather(1, sampled.action[:, None]).sum()
    actual = selected_logprobs(hidden, Head(head), sampled.action, sampled.kept, 0.7).sum()
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(torch.autograd.grad(actual, hidden)[0], torch.autograd.grad(expected, hidden)[0])


def test_sampler_by_hand():
    # p = 0.5, 0.25, 0.15, 0.1: top_p 0.7 keeps the first two (0.5 is below 0.7, 0.75 is not)
    logits = torch.tensor([[0.15, 0.5, 0.1, 0.25]]).log().repeat(2000, 1)
    sampled = Sampler(top_p=0.7)(logits, torch.Generator().manual_seed(0))
    assert sampled.kept[0].tolist() == [1, 3]
    share = (sampled.action == 1).float().mean().item()
    assert share == pytest.approx(2 / 3, abs=0.05)  # renormalised: 0.5 / 0.75
    torch.testing.assert_close(sampled.logprob.exp().unique(), torch.tensor([1 / 3, 2 / 3]))


def test_top_p_counts_the_mass_left_by_top_k():
    # top_k 2 leaves 0.5 and 0.25, renormalised 2/3 and 1/3; top_p 0.6 then keeps one
    sampled = Sampler(top_k=2, top_p=0.6)(torch.tensor([[0.15, 0.5, 0.1, 0.25]]).log(), None)
    assert sampled.kept.tolist() == [[1]]
    assert sampled.logprob.tolist() == [0.0]


def test_a_sampler_always_keeps_the_most_likely_token():
    sampled = Sampler(top_p=0.0)(torch.tensor([[0.2, 0.5, 0.3]]).log(), None)
    assert sampled.action.tolist() == [1]
    assert sampled.logprob.tolist() == [0.0]


def test_sampled_log_probabilities_estimate_the_exact_kl():
    """Over many responses, truncated: the mean of logprob - ref_logprob is the exact KL, up to its standard error."""
    trainer = tiny_trainer(top_k=8, top_p=0.8, max_new_tokens=16)
    perturb(trainer, scale=0.05)
    pairs, _ = trainer.generator.generate_sequences(PROMPTS * 32, torch.Generator().manual_seed(1))
    difference = (pairs["logprob"] - pairs["ref_logprob"] - pairs["exact_kl"])[pairs.mask]
    assert (pairs["exact_kl"][pairs.mask] > 0).all()
    assert difference.abs().mean() > 0.05  # single tokens are far from it
    standard_error = difference.std() / len(difference) ** 0.5
    assert difference.mean().abs() < 3 * standard_error


def test_finished_sequences_stop_costing():
    trainer = tiny_trainer(max_new_tokens=40)
    trainer.base.head.data[256] *= 3  # the stop token becomes likely at some states
    seen = []
    embed = trainer.base.decoder.embed
    trainer.base.decoder.embed = lambda ids: seen.append(ids.shape[0]) or embed(ids)
    rollout = generate(trainer.policy, encoded(trainer, PROMPTS * 4), 40, Sampler(), torch.Generator().manual_seed(0))
    lengths = rollout.mask.sum(1)
    assert lengths.min() < 10 < lengths.max()  # they end at different times
    decoded = sum(seen[-(int(lengths.max())) :])
    real = int(lengths.sum())
    assert decoded <= real / 0.75 + 32  # at most a quarter of the batch is ever finished and still computed


def test_response_ends_at_the_stop_token_which_belongs_to_it():
    trainer = tiny_trainer(max_new_tokens=30)
    trainer.base.head.data[256] *= 3
    rollout = generate(trainer.policy, encoded(trainer, PROMPTS * 4), 30, Sampler(), torch.Generator().manual_seed(0))
    for tokens, finished in zip(responses(rollout), rollout.finished.tolist(), strict=True):
        assert 256 not in tokens[:-1]
        assert (tokens[-1] == 256) == finished
    assert rollout.finished.any()


def test_pad_equal_to_eos_changes_nothing():
    prompts, texts = PROMPTS, []
    for pad in ("<pad>", "<eos>"):
        trainer = tiny_trainer()
        trainer.base.tokenizer.pad_token = pad
        pairs, text = trainer.generator.generate_sequences(prompts, torch.Generator().manual_seed(0))
        texts.append((text, pairs["logprob"].tolist()))
    assert texts[0] == texts[1]


def test_prompts_that_come_back_are_not_read_again():
    trainer = tiny_trainer()
    first = trainer.generator.generate_sequences(PROMPTS, torch.Generator().manual_seed(0))
    read = trainer.base.num_prompt_tokens_read
    assert read > 0
    second = trainer.generator.generate_sequences(PROMPTS, torch.Generator().manual_seed(0))
    assert trainer.base.num_prompt_tokens_read == read
    assert first[1] == second[1]


def test_what_all_prompts_begin_with_is_read_once():
    system = "You are a helpful clerk. "
    prompts = [system + p for p in PROMPTS] + [system]
    together, alone = tiny_trainer(), tiny_trainer(prompt_cache_mb=0)
    ids = encoded(together, prompts)
    together.base.agree_on_beginning(ids)
    rollout = generate(together.policy, ids, 6, GREEDY)
    singles = [generate(alone.policy, [i], 6, GREEDY) for i in ids]
    for row, single in enumerate(singles):
        width = single.context.start
        torch.testing.assert_close(rollout.context.prefix[:, :, row, :, -width:], single.context.prefix[:, :, 0])
        assert rollout.action[row].tolist()[: single.action.shape[1]] == single.action[0].tolist()
    shared = len(encoded(together, [system])[0]) - 1  # the last token is the adapters'
    everything = alone.base.num_prompt_tokens_read
    assert together.base.num_prompt_tokens_read <= everything - shared * (len(prompts) - 2)


def test_prompt_cache_keeps_to_its_budget_and_eviction_changes_nothing():
    trainer = tiny_trainer()
    cache = trainer.base.prompt_cache
    first = trainer.generator.generate_sequences(PROMPTS[:4], torch.Generator().manual_seed(0))[1]
    everything = cache.nbytes
    cache.max_bytes = everything // 2
    trainer.generator.generate_sequences(PROMPTS[4:], torch.Generator().manual_seed(0))
    assert 0 < cache.nbytes <= everything // 2
    read = trainer.base.num_prompt_tokens_read
    assert trainer.generator.generate_sequences(PROMPTS[:4], torch.Generator().manual_seed(0))[1] == first
    assert trainer.base.num_prompt_tokens_read > read  # what was evicted is read again


def test_chat_template_header_is_the_invocation():
    trainer = tiny_trainer(chat_template=True)
    trainer.generator.agree_on_invocation(PROMPTS)
    assert trainer.base.tokenizer.decode(trainer.base.invocation) == "[assistant]"


def test_system_prompt_reaches_the_template():
    trainer = tiny_trainer(chat_template=True, system_prompt="be kind")
    text = trainer.base.tokenizer.decode(trainer.generator.encoder.encode(["hello"])[0])
    assert text == "[system]be kind<eos>[user]hello<eos>[assistant]"


def test_invocation_is_the_ending_that_all_prompts_share():
    trainer = tiny_trainer()
    trainer.generator.agree_on_invocation(["what is it? TL;DR:", "who is he? TL;DR:"])
    assert trainer.base.tokenizer.decode(trainer.base.invocation) == "? TL;DR:"
    with pytest.warns(UserWarning, match="begin to act at 'DR:'"):
        trainer.ppo_step(["fine? TL;DR:", "another: DR:"])
    assert trainer.base.tokenizer.decode(trainer.base.invocation) == "DR:"


def test_prompts_must_end_where_a_loaded_adapter_begins():
    trainer = tiny_trainer()
    trainer.base.invocation = trainer.base.tokenizer("TL;DR:")["input_ids"]
    trainer.base.invocation_is_loaded = True  # as load_adapter leaves it
    trainer.ppo_step(["fine? TL;DR:"])
    with pytest.raises(InputError, match="a loaded adapter begins to act at 'TL;DR:'"):
        trainer.ppo_step(["another: DR:"])


def test_looking_at_a_sample_does_not_move_the_invocation():
    trainer = tiny_trainer()
    trainer.generator.generate_sequences(["before training"])
    trainer.ppo_step(PROMPTS)
    agreed = list(trainer.base.invocation)
    assert agreed
    trainer.generator.generate_sequences(["just looking"])
    assert trainer.base.invocation == agreed


def test_prompts_without_a_shared_ending_are_adapted_from_their_last_token():
    trainer = tiny_trainer()
    with pytest.warns(UserWarning, match="share no ending"):
        trainer.ppo_step(["nothing", "is shared", "here"])
    assert trainer.base.invocation == []
    assert trainer.base.num_adapted_prompt_tokens == 1
    trainer.ppo_step(["nor", "there"])


def test_logits_that_are_not_finite_stop_the_run():
    trainer = tiny_trainer()
    trainer.policy.parameters()[1].data.fill_(float("nan"))
    with pytest.raises(DivergedError, match="not finite"):
        trainer.ppo_step(PROMPTS)


def test_tokenizer_without_pad_token_works():
    from burnish import PPOTrainer
    from tiny import count_vowels, tiny_config

    trainer = PPOTrainer(tiny_config(), count_vowels, tiny_model(), tiny_tokenizer(pad=False))
    assert trainer.base.tokenizer.pad_token_id is None
    results = trainer.ppo_step(PROMPTS)
    assert results["value_loss"] == results["value_loss"]  # not NaN
