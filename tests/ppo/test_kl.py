"""The KL to the reference: exact, over the reference's whole vocabulary, in the reward or in the loss."""

import math

import pytest
import torch
from torch import tensor

import known_optimum
from burnish import InputError, PPOConfig, PPOTrainer, maths
from burnish.decoder import head as of_head
from burnish.decoder.head import Head, against_reference, kl_of_states
from burnish.errors import ConfigError, DivergedError
from burnish.ppo.guards import SamplerGapGuard
from burnish.ppo.training import PolicyLoss
from burnish.rollout.sampling import Sampler
from burnish.sa_pairs.table import SAPairs
from tiny import PROMPTS, count_vowels, tiny_config, tiny_model, tiny_tokenizer, tiny_trainer

pytestmark = pytest.mark.long


def test_exact_kl_by_hand():
    p = tensor([0.5, 0.5, 0.0]).log()  # the third token was cut off
    q = tensor([0.25, 0.5, 0.25]).log()
    # 0.5 * log(0.5 / 0.25) + 0.5 * log(0.5 / 0.5)
    assert maths.exact_kl(p, q).item() == pytest.approx(0.5 * math.log(2))


def states_and_head(n=7, vocabulary=50, hidden=12, dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=dtype)  # noqa: E731
    return draw(n, hidden), draw(n, hidden), draw(vocabulary, hidden)


@pytest.mark.parametrize("sampler", [Sampler(0.7), Sampler(0.7, top_k=10, top_p=0.9), Sampler(0.7, top_k=1)])
@pytest.mark.parametrize("gathered", [512, 4])  # kept rows of the head, or all of it
@pytest.mark.parametrize("chunk", [48 * 2**20, 1])
def test_the_reference_counts_with_its_whole_vocabulary(sampler, gathered, chunk, monkeypatch):
    monkeypatch.setattr(of_head, "MAX_GATHERED_ROWS", gathered)
    monkeypatch.setattr(of_head, "CHUNK_BYTES", chunk)
    hidden, ref_hidden, head = states_and_head()
    sampled = sampler((hidden @ head.T), torch.Generator().manual_seed(1))
    ref_logprob, kl = against_reference(hidden, ref_hidden, Head(head), sampled.action, sampled.kept, 0.7)
    q = (ref_hidden @ head.T / 0.7).float().log_softmax(-1)  # [7, 50]
    torch.testing.assert_close(ref_logprob, q.gather(1, sampled.action[:, None]).squeeze(1))
    z = hidden @ head.T / 0.7
    if sampled.kept is not None:
        keeps = torch.zeros_like(z, dtype=torch.bool)
        for row, ids in zip(keeps, sampled.kept, strict=True):
            row[ids[ids >= 0].long()] = True
        z = z.masked_fill(~keeps, -torch.inf)
    p = z.float().log_softmax(-1)
    torch.testing.assert_close(kl, torch.nan_to_num(p.exp() * (p - q)).sum(-1), atol=1e-5, rtol=1e-5)


def test_the_kl_of_a_policy_that_keeps_one_token_does_not_vanish():
    """Over the kept set alone it would be 0 whatever the reference thinks of the token."""
    head = torch.eye(3)
    hidden, ref_hidden = tensor([[9.0, 0.0, 0.0]]), tensor([[0.0, 9.0, 0.0]])
    kept = tensor([[0, -1, -1]], dtype=torch.int32)
    ref_logprob, kl = against_reference(hidden, ref_hidden, Head(head), tensor([0]), kept)
    assert ref_logprob.item() == pytest.approx(-9.0, abs=1e-3)
    assert kl.item() == pytest.approx(9.0, abs=1e-3)


def test_before_training_the_kl_is_what_truncation_cuts_off():
    trainer = tiny_trainer(top_k=20, top_p=0.8)
    pairs, _ = trainer.generator.generate_sequences(PROMPTS, torch.Generator().manual_seed(0))
    sampled, whole = pairs["logprob"], pairs["ref_logprob"]  # the same model, with and without the cut
    torch.testing.assert_close(pairs["exact_kl"], sampled - whole, atol=2e-5, rtol=0)  # -log of the mass kept
    assert (pairs["exact_kl"][pairs.mask] > 0).all()


@pytest.mark.parametrize("chunk", [48 * 2**20, 1])
def test_kl_of_states_has_the_gradient_of_the_formula(chunk, monkeypatch):
    monkeypatch.setattr(of_head, "CHUNK_BYTES", chunk)
    hidden, ref_hidden, head = states_and_head(dtype=torch.float32)
    weight = torch.linspace(-1, 2, len(hidden))
    ours, theirs = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    kl = kl_of_states(ours, ref_hidden, Head(head), 0.7)
    (kl * weight).sum().backward()
    p, q = ((h @ head.T / 0.7).log_softmax(-1) for h in (theirs, ref_hidden))
    expected = maths.exact_kl(p, q)
    (expected * weight).sum().backward()
    torch.testing.assert_close(kl, expected)
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("vocabulary", "hidden", "kept"), [(150_000, 64, 50), (1_000, 4096, 512), (150_000, 64, None)])
@pytest.mark.parametrize("whole", [True, False])
def test_no_more_logits_exist_at_once_than_a_chunk_holds(vocabulary, hidden, kept, whole):
    head = torch.empty(vocabulary, hidden, device="meta")
    sets = None if kept is None else torch.empty(1000, kept, dtype=torch.int32, device="meta")
    pieces = list(of_head._chunks(1000, head, sets, whole))
    size = pieces[0].stop
    assert (pieces[0].start, pieces[-1].stop >= 1000) == (0, True)
    assert 4 * size * (0 if kept is None else kept * hidden) <= of_head.CHUNK_BYTES
    if whole or kept is None:
        assert 4 * size * vocabulary <= of_head.CHUNK_BYTES


def test_the_kl_in_the_loss_is_priced_in_the_rewards_units():
    mask = tensor([[True, True]])
    pairs = SAPairs(mask, {"logprob": torch.zeros(1, 2), "advantage": tensor([[4.0, -4.0]])})
    kl = tensor([[0.5, 1.0]])
    # whitened by mean 0 and scale 1/4: the clip loss is -1 and +1, and a nat costs 0.2 / 4
    loss, _ = PolicyLoss(0.2, mean=0.0, scale=0.25, kl_coef=0.2)(pairs, torch.zeros(1, 2), kl)
    assert loss.item() == pytest.approx(0.05 * 1.5)


@pytest.mark.parametrize(
    ("place", "estimator"),
    [("reward", "k2"), ("reward", "k3"), ("reward", "exact"), ("loss", "k1"), ("both", "k1"), ("both", "k3")],
)
def test_an_estimator_with_the_wrong_gradient_is_refused(place, estimator):
    with pytest.raises(ConfigError, match=f"{estimator} has the wrong gradient with kl_in: {place}; use"):
        PPOConfig(kl_in=place, kl_estimator=estimator)


def test_the_loss_is_not_priced_in_whitened_rewards():
    with pytest.raises(ConfigError, match="whiten_rewards"):
        PPOConfig(kl_in="loss", kl_estimator="exact", whiten_rewards=True)


def test_kept_sets_have_a_bound():
    with pytest.raises(ConfigError, match="without top_k keeps sets of any size"):
        PPOConfig(top_k=0, top_p=0.9)


@pytest.mark.parametrize(
    ("place", "estimator"), [("reward", "k1"), ("loss", "k2"), ("loss", "exact"), ("both", "exact")]
)
def test_the_kl_is_charged_where_the_config_says(place, estimator):
    """The reward carries the charge only where it is the reward's; in the loss a high price holds back at once. (What
    the charge in the reward does over many steps is below.)"""
    settings = {"kl_in": place, "kl_estimator": estimator, "top_k": 0, "top_p": 1.0, "learning_rate": 1e-2}
    free, dear = (
        [trainer.ppo_step(PROMPTS) for _ in range(4)][-1]
        for trainer in (tiny_trainer(kl_coef=0.0, **settings), tiny_trainer(kl_coef=10.0, **settings))
    )
    assert place != "loss" or dear["kl"] < 0.5 * free["kl"]
    pairs = dear["sa_pairs"]
    before_the_last = pairs.mask & ~(pairs.mask.cumsum(1) == pairs.mask.sum(1, keepdim=True))
    charged = pairs["reward"][before_the_last]
    expected = torch.zeros_like(charged) if place == "loss" else -10.0 * pairs["kl"][before_the_last]
    torch.testing.assert_close(charged, expected)


def test_the_exact_kl_in_the_loss_needs_pairs_with_the_references_states():
    trainer = tiny_trainer(kl_in="loss", kl_estimator="exact")
    rows = trainer.ppo_step(PROMPTS)["sa_pairs"].to_dicts()
    with pytest.raises(InputError, match="carry no states of the reference"):
        trainer.model_trainer.train_policy_model(rows)


def test_a_gap_that_the_format_does_not_explain_stops_before_the_update():
    guard = SamplerGapGuard(torch.bfloat16)
    guard.check(0.03)
    with pytest.warns(UserWarning, match=r"grown from 0\.03 to 0\.15"):
        guard.check(0.15)
    with pytest.raises(DivergedError, match="sampling and training disagree"):
        guard.check(0.3)
    SamplerGapGuard(torch.float32).check(None)  # one set of numbers: no gap


def test_a_step_in_half_precision_checks_the_gap_before_it_trains():
    trainer = PPOTrainer(tiny_config(), count_vowels, tiny_model().to(torch.bfloat16), tiny_tokenizer())
    trained = [*trainer.policy.parameters(), *trainer.value_model.parameters()]
    before = [p.detach().clone() for p in trained]
    trainer.sampler_gap_guard.limit = 1e-9
    with pytest.raises(DivergedError, match="sampling and training disagree"):
        trainer.ppo_step(PROMPTS)
    assert all(torch.equal(a, b) for a, b in zip(before, trained, strict=True))


# ------------------------------------------------------------------------------------------------ a known optimum
#
# k2 in the reward, the exact KL in the reward alone, and a reference renormalised over the kept set all fail these.


@pytest.mark.parametrize(("beta", "scope"), [(0.2, "response"), (0.05, "response"), (0.05, "sequence")])
def test_ppo_reaches_the_known_optimum(beta, scope):
    sooner = {"steps": 90, "mini_batch_size": 128, "learning_rate": 5e-3, "value_learning_rate": 5e-3}
    way = known_optimum.way_of(known_optimum.trained(beta, adapter_scope=scope, **sooner))
    assert way.reached > 0.95
    assert way.reported_kl == pytest.approx(way.kl, rel=0.05)


@pytest.mark.parametrize("beta", [0.2, 0.05])
def test_ppo_with_top_p_reaches_nine_tenths_of_what_truncation_allows(beta):
    way = known_optimum.way_of(known_optimum.trained(beta, top_p=0.95))
    assert way.possible < 0.999  # so that this is another test than the one above
    assert way.reached > 0.9 * way.possible
    assert way.reported_kl == pytest.approx(way.kl, rel=0.05)


@pytest.mark.parametrize(("place", "top_p"), [("loss", 1.0), ("both", 1.0), ("both", 0.95)])
def test_the_exact_kl_in_the_loss_reaches_it_too(place, top_p):
    way = known_optimum.way_of(known_optimum.trained(0.05, top_p, kl_in=place, kl_estimator="exact"))
    assert way.reached > 0.93 * way.possible
