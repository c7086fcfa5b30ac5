"""The arithmetic, against numbers worked out by hand and against identities."""

import math

import pytest
import torch
from torch import tensor

from burnish import maths

MASK = tensor([[True, True, True], [True, False, False]])


def random_batch(b=5, t=7, seed=0):
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, t + 1, (b,), generator=g)
    mask = torch.arange(t) < lengths[:, None]
    return mask, *(torch.randn(b, t, generator=g) * mask for _ in range(2))


def close(actual, expected):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype))


# ------------------------------------------------------------------------------------------------------------- by hand


def test_masked_mean_ignores_what_is_outside_the_mask():
    # (1 + 2 + 3 + 6) / 4 = 3; the two 100s do not count
    close(maths.masked_mean(tensor([[1.0, 2, 3], [6, 100, 100]]), MASK), 3.0)


def test_masked_var_is_the_biased_variance_of_real_tokens():
    # mean 3, squares 4 + 1 + 0 + 9 = 14, / 4
    close(maths.masked_var(tensor([[1.0, 2, 3], [6, 100, 100]]), MASK), 3.5)


def test_whiten_by_hand():
    # mean 3, sd sqrt(3.5) = 1.870829: (1-3)/1.870829 = -1.069045, -0.534522, 0, 1.603567
    white = maths.whiten(tensor([[1.0, 2, 3], [6, 100, 100]]), MASK)
    close(white, [[-1.069045, -0.534522, 0], [1.603567, 0, 0]])


def test_whiten_can_keep_the_mean():
    white = maths.whiten(tensor([[1.0, 2, 3], [6, 100, 100]]), MASK, keep_mean=True)
    close(white, [[1.930955, 2.465478, 3], [4.603567, 0, 0]])


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("k1", [0.5, -1.0]),  # d
        ("k2", [0.125, 0.5]),  # d^2 / 2
        ("k3", [0.106531, 0.718282]),  # exp(-0.5) - 1 + 0.5; exp(1) - 1 - 1
    ],
)
def test_kl_estimators_by_hand(estimator, expected):
    close(maths.kl_per_token(tensor([[-1.0, -3.0]]), tensor([[-1.5, -2.0]]), estimator), [expected])


def test_unknown_kl_estimator_is_refused():
    with pytest.raises(ValueError, match="k4"):
        maths.kl_per_token(torch.zeros(1, 1), torch.zeros(1, 1), "k4")


def test_score_lands_on_the_last_real_token():
    # row 0: -0.1 * (1, 2, 3) and 5 on the third; row 1: -0.1 * 4 and 7 on the first, its last
    reward = maths.kl_adjusted_rewards(tensor([[1.0, 2, 3], [4, 9, 9]]), tensor([5.0, 7.0]), MASK, 0.1)
    close(reward, [[-0.1, -0.2, 4.7], [6.6, 0, 0]])


def test_score_per_token_is_added_where_it_stands():
    score = tensor([[1.0, 2, 3], [4, 9, 9]])
    close(maths.kl_adjusted_rewards(torch.ones(2, 3), score, MASK, 0.5), [[0.5, 1.5, 2.5], [3.5, 0, 0]])


def test_a_score_that_is_neither_per_response_nor_per_token_is_refused():
    """One of [B, 1] would be added to every token."""
    for shape in ((2, 1), (1, 3), (1,), (3,)):
        with pytest.raises(ValueError, match=r"neither \[B\] nor \[B, T\] of \(2, 3\)"):
            maths.kl_adjusted_rewards(torch.ones(2, 3), torch.ones(shape), MASK, 0.5)


def test_adaptive_kl_coefficient_by_hand():
    # kl 6 at target 5: error 0.2, 0.1 * (1 + 0.2 * 32 / 320) = 0.102
    assert maths.adapted_kl_coef(0.1, 6.0, 5.0, 32, 320) == pytest.approx(0.102)
    # far above the target the error is clipped to 0.2, far below to -0.2
    assert maths.adapted_kl_coef(0.1, 500.0, 5.0, 32, 320) == pytest.approx(0.102)
    assert maths.adapted_kl_coef(0.1, 0.0, 5.0, 32, 320) == pytest.approx(0.098)


def test_td_errors_by_hand():
    # gamma 0.5, r = (1, 2, 3), v = (4, 6, 8): 1 + 3 - 4 = 0; 2 + 4 - 6 = 0; 3 + 0 - 8 = -5
    close(maths.td_errors(tensor([[1.0, 2, 3]]), tensor([[4.0, 6, 8]]), 0.5), [[0, 0, -5]])


def test_gae_by_hand():
    # gamma * lam = 0.25, deltas (1, 2, 4): A3 = 4, A2 = 2 + 1 = 3, A1 = 1 + 0.75 = 1.75
    close(maths.gae_advantages(tensor([[1.0, 2, 4]]), 0.5, 0.5), [[1.75, 3, 4]])


def test_reward_to_go_by_hand():
    # gamma 0.5: R3 = 4, R2 = 2 + 2 = 4, R1 = 1 + 2 = 3
    close(maths.reward_to_go(tensor([[1.0, 2, 4]]), 0.5), [[3, 4, 4]])


def test_ppo_clip_loss_by_hand():
    # eps 0.2. A = 1: ratio 1.5 earns only 1.2; ratio 0.5 is charged in full. A = -1: ratio 1.5 is charged in full,
    # ratio 0.5 earns only 0.8.
    ratio, advantage = tensor([[1.5, 0.5, 1.5, 0.5]]), tensor([[1.0, 1.0, -1.0, -1.0]])
    close(maths.ppo_clip_loss(ratio, advantage, 0.2), [[-1.2, -0.5, 1.5, 0.8]])


def test_the_clips_upper_side_and_the_dual_clip_by_hand():
    ratio, advantage = tensor([[1.5, 0.5, 4.0]]), tensor([[1.0, 1.0, -1.0]])
    # upper side 0.28: -1 * 1.28; 0.5 is worse than 1 - 0.2, so it stays; -A * 4 = 4, which nothing bounds
    close(maths.ppo_clip_loss(ratio, advantage, 0.2, 0.28), [[-1.28, -0.5, 4.0]])
    # at 3 times the advantage it is bounded
    close(maths.ppo_clip_loss(ratio, advantage, 0.2, 0.28, dual_clip=3.0), [[-1.28, -0.5, 3.0]])


def test_dppo_drops_what_has_moved_far_enough_by_hand():
    old = tensor([[0.5, 0.5, 0.5, 0.5, 0.001]]).log()
    new = tensor([[0.8, 0.8, 0.2, 0.2, 0.1]]).log()
    advantage = tensor([[1.0, -1.0, 1.0, -1.0, 1.0]])
    # 0.3 up is beyond 0.2, wanted (dropped) or not; 0.3 down likewise; 0.001 to 0.1 is a ratio of 100, and still kept
    keeps = maths.dppo_keeps(new, old, advantage, 0.2, 0.2)
    assert keeps.tolist() == [[False, True, True, False, True]]
    assert maths.dppo_keeps(new, old, advantage, 0.2, 0.35).tolist() == [[True, True, True, False, True]]


def test_cispo_clips_the_weight_and_keeps_the_gradient():
    logprob = tensor([[0.5, 0.2]]).log().requires_grad_()
    ratio = tensor([[2.0, 0.5]])
    loss = maths.cispo_loss(logprob, ratio, tensor([[3.0, -1.0]]), 0.3)
    close(loss.detach(), [[-1.3 * 3 * math.log(0.5), 0.5 * math.log(0.2)]])  # there is no bound below
    loss.sum().backward()
    close(logprob.grad, [[-3.9, 0.5]])


def test_the_sequence_ratio_is_the_geometric_mean():
    old = torch.zeros(2, 3)
    new = tensor([[2.0, 4.0, 1.0], [9.0, 100.0, 100.0]]).log()
    # (2 * 4 * 1) ** (1/3) = 2; the second response has one token
    close(maths.sequence_ratio(new, old, MASK), [[2.0, 2.0, 2.0], [9.0, 9.0, 9.0]])


def test_groups_by_hand():
    x, group = tensor([1.0, 5.0, 3.0, 6.0, 2.0]), tensor([7, 7, 3, 7, 3])
    close(maths.group_mean(x, group), [4.0, 4.0, 2.5, 4.0, 2.5])  # (1 + 5 + 6) / 3, (3 + 2) / 2
    close(maths.leave_one_out_mean(x, group), [5.5, 3.5, 2.0, 3.0, 3.0])
    # 7: squares 9 + 1 + 4 = 14, / 2; 3: 0.25 + 0.25, / 1
    close(maths.group_std(x, group), [7**0.5, 7**0.5, 0.5**0.5, 7**0.5, 0.5**0.5])


def test_a_response_that_is_alone_is_its_own_baseline():
    x, group = tensor([1.0, 5.0, 4.0]), tensor([0, 1, 1])
    close(maths.leave_one_out_mean(x, group), [1.0, 4.0, 5.0])
    close(maths.group_std(x, group)[0], 0.0)


def test_tether_weight_by_hand():
    returns, baseline = tensor([[1.0, 2.0, 9.0], [3.0, 9.0, 9.0]]), torch.zeros(2, 3)
    # a critic that says half of everything... over real tokens 0.5, 1, 4.5, 1.5: sum(r v) / sum(v v) = 2, and 1 is most
    assert maths.tether_weight(returns, returns / 2, baseline, MASK) == 1.0
    # twice everything: 1 / 2. What is outside the mask does not count.
    value = tensor([[2.0, 4.0, 18.0], [6.0, 0.0, -50.0]])
    assert maths.tether_weight(returns, value, baseline, MASK) == pytest.approx(0.5)
    assert maths.tether_weight(returns, -value, baseline, MASK) == 0.0
    assert maths.tether_weight(returns, baseline, baseline, MASK) == 0.0  # there is nothing to mix


def test_bounds_by_hand():
    # atan(1) = pi / 4: three quarters of the way
    close(maths.bounded(tensor([0.0, 1.0, -1e9, 1e9]), -1.0, 3.0), [1.0, 2.0, -1.0, 3.0])


def test_value_loss_by_hand():
    # v = 2, R = 1, old 1.0: unclipped (2-1)^2 = 1; clipped to 1.2: 0.04; the larger one, halved: 0.5
    # v = 0.5, R = 1, old 2.0: unclipped 0.25; clipped to 1.8: 0.64; halved: 0.32
    v, returns, old = tensor([[2.0, 0.5]]), tensor([[1.0, 1.0]]), tensor([[1.0, 2.0]])
    close(maths.value_mse_loss(v, returns, old, 0.2), [[0.5, 0.32]])
    close(maths.value_mse_loss(v, returns, old, None), [[0.5, 0.125]])


def test_approx_kl_by_hand():
    # log-ratios 0.1 and 0.3 on real tokens: 0.5 * (0.01 + 0.09) / 2 = 0.025
    mask = tensor([[True, True, False]])
    close(maths.approx_kl(tensor([[0.1, 0.3, 9.0]]), torch.zeros(1, 3), mask), 0.025)


def test_entropy_by_hand():
    # four equal options: log 4; one certain option among excluded ones: 0
    close(maths.entropy(tensor([[0.25, 0.25, 0.25, 0.25]]).log()), [math.log(4)])
    close(maths.entropy(tensor([[1.0, 0.0, 0.0]]).log()), [0.0])


def test_explained_variance_by_hand():
    target = tensor([[1.0, 2, 3]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    close(maths.explained_variance(target, target, mask), 1.0)
    close(maths.explained_variance(torch.zeros(1, 3), target, mask), 0.0)
    # twice the error variance of a constant: -1. Errors of (3,2,1): target - prediction = (-2, 0, 2), var 8/3, of 2/3
    close(maths.explained_variance(tensor([[3.0, 2, 1]]), target, mask), -3.0)


def test_where_returns_do_not_vary_no_critic_explains_anything():
    mask = torch.ones(1, 3, dtype=torch.bool)
    same = torch.full((1, 3), 0.7)
    for critic in ([[0.7, 0.7, 0.7]], [[5.0, 5.0, 5.0]], [[0.0, 1.0, 2.0]]):
        close(maths.explained_variance(tensor(critic), same, mask), 0.0)
    close(maths.explained_variance(torch.ones(1, 3), torch.zeros(1, 3), mask), 0.0)
    # however small they are, returns that vary count: a constant critic explains nothing of them, a perfect one all
    small = 1e-5 * tensor([[1.0, 2, 3]])
    close(maths.explained_variance(torch.zeros(1, 3), small, mask), 0.0)
    close(maths.explained_variance(small, small, mask), 1.0)


def test_linear_decay_by_hand():
    assert [maths.linear_decay(s, 4) for s in range(6)] == [1.0, 0.75, 0.5, 0.25, 0.25, 0.25]


# ---------------------------------------------------------------------------------------------------------- identities


@pytest.mark.parametrize(
    ("correction", "weights"), [("truncate", [1.0, 2.0, 0.25, 1.5]), ("mask", [1.0, 0.0, 0.0, 1.5])]
)
def test_sampler_weights_by_hand(correction, weights):
    # ratios 0.4 / 0.4 = 1, 0.8 / 0.2 = 4, 0.1 / 0.4 = 1/4, 0.6 / 0.4 = 3/2; from 1/2 to 2 they are kept as they are
    own, sampler = tensor([[0.4, 0.8, 0.1, 0.6]]).log(), tensor([[0.4, 0.2, 0.4, 0.4]]).log()
    close(maths.sampler_weights(own, sampler, correction, 2.0), [weights])
    with pytest.raises(ValueError, match="unknown correction"):
        maths.sampler_weights(own, sampler, "none", 2.0)


def test_lambda_one_makes_advantage_plus_value_the_reward_to_go():
    mask, reward, value = random_batch()
    advantage = maths.gae_advantages(maths.td_errors(reward, value, 0.9), 0.9, 1.0)
    torch.testing.assert_close((advantage + value) * mask, maths.reward_to_go(reward, 0.9) * mask)


def test_lambda_zero_makes_the_advantage_the_td_error():
    _, reward, value = random_batch()
    delta = maths.td_errors(reward, value, 0.9)
    torch.testing.assert_close(maths.gae_advantages(delta, 0.9, 0.0), delta)


def test_constant_reward_approaches_the_geometric_series():
    # sum of 0.9^k = 1 / (1 - 0.9)
    assert maths.reward_to_go(torch.ones(1, 400), 0.9)[0, 0].item() == pytest.approx(10.0, rel=1e-5)


def test_credit_ignores_padding_width():
    mask, reward, value = random_batch()
    wide = [torch.nn.functional.pad(x, (0, 9)) for x in (reward, value)]
    narrow_result = maths.gae_advantages(maths.td_errors(reward, value, 0.99), 0.99, 0.95)
    wide_result = maths.gae_advantages(maths.td_errors(*wide, 0.99), 0.99, 0.95)
    torch.testing.assert_close(wide_result[:, : mask.shape[1]], narrow_result)
    assert (wide_result[:, mask.shape[1] :] == 0).all()


def test_whitened_values_have_mean_zero_and_variance_one():
    mask, x, _ = random_batch()
    white = maths.whiten(x, mask)
    close(maths.masked_mean(white, mask), 0.0)
    close(maths.masked_var(white, mask), 1.0)


def test_k3_is_never_negative_and_estimates_the_same_kl():
    g = torch.Generator().manual_seed(0)
    p, q = (torch.randn(50, generator=g).log_softmax(0) for _ in range(2))
    sampled = torch.multinomial(p.exp(), 200_000, replacement=True, generator=g)
    exact = (p.exp() * (p - q)).sum()
    k1, k3 = (maths.kl_per_token(p[sampled], q[sampled], k) for k in ("k1", "k3"))
    assert (k3 >= 0).all()
    assert k1.mean().item() == pytest.approx(exact.item(), rel=0.02)
    assert k3.mean().item() == pytest.approx(exact.item(), rel=0.02)


def test_equal_policies_have_ratio_one_and_loss_minus_the_advantage():
    _, logprob, advantage = random_batch()
    ratio = maths.policy_ratio(logprob, logprob)
    assert (ratio == 1).all()
    torch.testing.assert_close(maths.ppo_clip_loss(ratio, advantage, 0.2), -advantage)


def test_ratio_stays_finite_for_impossible_tokens():
    assert torch.isfinite(maths.policy_ratio(tensor([[0.0, -2000.0]]), tensor([[-2000.0, 0.0]]))).all()


def test_clipped_tokens_get_no_gradient():
    logprob = tensor([[0.5, -0.5]], requires_grad=True)  # ratios 1.65 and 0.61
    ratio = maths.policy_ratio(logprob, torch.zeros(1, 2))
    maths.ppo_clip_loss(ratio, tensor([[1.0, -1.0]]), 0.2).sum().backward()
    assert (logprob.grad == 0).all()


def test_uniform_entropy_is_the_largest():
    logprobs = (torch.randn(100, 20, generator=torch.Generator().manual_seed(0)) * 3).log_softmax(-1)
    assert (maths.entropy(logprobs) <= math.log(20)).all()
    assert (maths.entropy(logprobs) >= 0).all()
