"""PPO's arithmetic as pure functions: tensors in, tensors out, nothing known of models or tables.

Shapes: B sequences, T response positions. `mask` is True on generated tokens (the stop token included) and every
per-token tensor is zero outside it. r_t is the reward of token t, v_t the value of the state before token t.
"""

from __future__ import annotations

import torch
from torch import Tensor

# A log-ratio beyond this is already clipped by any PPO epsilon; the clamp only keeps exp() finite.
MAX_LOG_RATIO = 20.0


# ---------------------------------------------------------------------------------------------- masked statistics


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """sum(x * mask) / sum(mask).  [B, T] -> scalar"""
    return (x * mask).sum() / mask.sum().clamp(min=1)


def masked_var(x: Tensor, mask: Tensor) -> Tensor:
    """Biased variance over real tokens: mean((x - mean)^2).  [B, T] -> scalar"""
    return masked_mean((x - masked_mean(x, mask)) ** 2, mask)


def whiten(x: Tensor, mask: Tensor, keep_mean: bool = False) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8) over real tokens; `keep_mean` adds the mean back.  [B, T] -> [B, T]"""
    mean = masked_mean(x, mask)
    white = (x - mean) * torch.rsqrt(masked_var(x, mask) + 1e-8)
    return (white + mean if keep_mean else white) * mask


# ------------------------------------------------------------------------------------------------ KL and rewards


def kl_per_token(logprob: Tensor, ref_logprob: Tensor, estimator: str = "k1") -> Tensor:
    """Estimates of KL(policy || reference) from sampled tokens, with d = logprob - ref_logprob.  [B, T] -> [B, T]

    k1 = d (unbiased, may be negative), k2 = d^2 / 2, k3 = exp(-d) - 1 + d (unbiased, never negative).
    """
    d = logprob - ref_logprob
    if estimator == "k1":
        return d
    if estimator == "k2":
        return d**2 / 2
    if estimator == "k3":
        return torch.expm1(-d.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)) + d
    raise ValueError(f"unknown KL estimator {estimator!r}; use k1, k2 or k3")


def exact_kl(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """KL(policy || reference) of one position: sum_v p_v (log p_v - log q_v), never negative.  [..., V] -> [...]

    Entries of -inf in `logprobs` carry no mass. The reference's entries need not sum to 1: they may be those of its
    whole vocabulary at the few tokens that the policy kept.
    """
    p = logprobs.exp()
    return (p * (logprobs - ref_logprobs).masked_fill(p == 0, 0.0)).sum(-1)


def kl_adjusted_rewards(kl: Tensor, score: Tensor, mask: Tensor, kl_coef: float) -> Tensor:
    """r_t = -kl_coef * kl_t, plus the score.  [B, T] -> [B, T]

    A score per response [B] lands on the last generated token; a score per token [B, T] is added where it stands.
    """
    if score.shape not in (mask.shape, mask.shape[:1]):
        raise ValueError(f"a score of shape {tuple(score.shape)} is neither [B] nor [B, T] of {tuple(mask.shape)}")
    reward = -kl_coef * kl * mask
    if score.dim() == 2:
        return reward + score * mask
    last = mask & (mask.cumsum(1) == mask.sum(1, keepdim=True))  # [B, T], one True per row
    return reward + last * score[:, None]


def combined_scores(scores: Tensor, combine: str, caution: float) -> Tensor:
    """What M judges say together: their mean, the lowest (worst), or mean - caution * variance (cautious).
    [M, B] -> [B]
    """
    if combine == "worst":
        return scores.amin(0)
    return scores.mean(0) - (caution * scores.var(0, correction=0) if combine == "cautious" else 0.0)


def overlong(lengths: Tensor, longest: int, tokens: int) -> Tensor:
    """0 for responses that leave `tokens` of the longest length free, then linearly up to 1 for the longest.
    [B] int -> [B]
    """
    return ((lengths - (longest - tokens)) / tokens).clamp(0.0, 1.0)


def adapted_kl_coef(kl_coef: float, kl: float, target: float, num_sequences: int, horizon: int) -> float:
    """kl_coef * (1 + clip(kl / target - 1, -0.2, 0.2) * n / horizon): drifts until the measured KL meets its target."""
    error = min(max(kl / target - 1.0, -0.2), 0.2)
    return kl_coef * (1.0 + error * num_sequences / horizon)


# ---------------------------------------------------------------------------------------------- credit over time


def discounted_sum(x: Tensor, discount: float) -> Tensor:
    """y_t = x_t + discount * y_{t+1}, from the right.  [B, T] -> [B, T]

    Zeros to the right of a sequence stay zeros, so right padding of any width changes nothing.
    """
    y = torch.zeros_like(x)
    running = torch.zeros_like(x[:, 0]) if x.shape[1] else x.sum(1)
    for t in reversed(range(x.shape[1])):
        running = x[:, t] + discount * running
        y[:, t] = running
    return y


def td_errors(reward: Tensor, value: Tensor, gamma: float) -> Tensor:
    """delta_t = r_t + gamma * v_{t+1} - v_t, with v = 0 after the last token.  [B, T] -> [B, T]"""
    next_value = torch.cat([value[:, 1:], torch.zeros_like(value[:, :1])], dim=1)
    return reward + gamma * next_value - value


def gae_advantages(td_error: Tensor, gamma: float, lam: float) -> Tensor:
    """A_t = delta_t + gamma * lam * A_{t+1}  (Schulman et al. 2016, eq. 16).  [B, T] -> [B, T]"""
    return discounted_sum(td_error, gamma * lam)


def reward_to_go(reward: Tensor, gamma: float) -> Tensor:
    """R_t = r_t + gamma * R_{t+1}.  [B, T] -> [B, T]"""
    return discounted_sum(reward, gamma)


def explained_variance(prediction: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """1 - Var(target - prediction) / Var(target): 1 is a perfect critic, 0 is no better than a constant.

    0 for every critic if the targets do not vary (beyond rounding): there is nothing to explain, and so no merit.
    """
    spread = masked_var(target, mask)
    explained = 1.0 - masked_var(target - prediction, mask) / spread
    return torch.where(spread > 1e-10 * masked_mean(target**2, mask), explained, torch.zeros_like(spread))


# ------------------------------------------------------------------------------------- several responses per prompt


def group_mean(x: Tensor, group: Tensor) -> Tensor:
    """Mean of each response's group.  [B], [B] int -> [B]"""
    return _group_sums(x, group) / _group_sums(torch.ones_like(x), group)


def leave_one_out_mean(x: Tensor, group: Tensor) -> Tensor:
    """Mean of the others in each response's group; its own x where there are no others.  [B], [B] int -> [B]"""
    others = _group_sums(torch.ones_like(x), group) - 1
    return torch.where(others > 0, (_group_sums(x, group) - x) / others.clamp(min=1), x)


def group_std(x: Tensor, group: Tensor) -> Tensor:
    """Unbiased standard deviation of each response's group; 0 where it is alone.  [B], [B] int -> [B]"""
    squares = _group_sums((x - group_mean(x, group)) ** 2, group)
    return (squares / (_group_sums(torch.ones_like(x), group) - 1).clamp(min=1)).sqrt()


def _group_sums(x: Tensor, group: Tensor) -> Tensor:
    _, number = group.unique(return_inverse=True)
    return x.new_zeros(int(number.max()) + 1).index_add_(0, number, x)[number]


def tether_weight(returns: Tensor, value: Tensor, baseline: Tensor, mask: Tensor) -> float:
    """How much of the critic a baseline needs: the w in [0, 1] with the least squared error of
    returns - ((1 - w) * baseline + w * value) over real tokens.  [B, T] each
    """
    error, step = (returns - baseline) * mask, (value - baseline) * mask
    squares = float((step * step).sum())
    return min(max(float((error * step).sum()) / squares, 0.0), 1.0) if squares else 0.0


# -------------------------------------------------------------------------------------------------------- losses


def policy_ratio(logprob: Tensor, old_logprob: Tensor) -> Tensor:
    """pi(a|s) / pi_old(a|s) = exp(logprob - old_logprob).  [B, T] -> [B, T]"""
    return (logprob - old_logprob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def sequence_ratio(logprob: Tensor, old_logprob: Tensor, mask: Tensor) -> Tensor:
    """The geometric mean of a response's ratios, the same for all its tokens (GSPO).  [B, T] -> [B, T]"""
    mean = ((logprob - old_logprob) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return mean.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().expand_as(logprob)


def sampler_weights(logprob: Tensor, sampler_logprob: Tensor, correction: str, largest: float) -> Tensor:
    """w_t = pi(a|s) / pi_sampler(a|s), bounded: by truncation min(w, C), or by a mask w * [1/C <= w <= C].
    [B, T] -> [B, T]

    What a token counts for that another engine sampled with slightly other numbers (truncated importance sampling, Yao
    et al. 2025; masked, as in IcePop). Both probabilities are those of the rollout: no gradient.
    """
    weight = policy_ratio(logprob, sampler_logprob)
    if correction == "truncate":
        return weight.clamp(max=largest)
    if correction == "mask":
        return weight * ((weight >= 1 / largest) & (weight <= largest))
    raise ValueError(f"unknown correction {correction!r}; use truncate or mask")


def ppo_clip_loss(
    ratio: Tensor, advantage: Tensor, low: float, high: float | None = None, dual_clip: float | None = None
) -> Tensor:
    """max(-A * ratio, -A * clip(ratio, 1 - low, 1 + high))  (Schulman et al. 2017, eq. 7).  [B, T] -> [B, T]

    `high` is `low` unless given. `dual_clip` c bounds the loss of tokens with A < 0 by -A * c (Ye et al. 2020).
    """
    clipped = ratio.clamp(1.0 - low, 1.0 + (low if high is None else high))
    loss = torch.maximum(-advantage * ratio, -advantage * clipped)
    if dual_clip is None:
        return loss
    return torch.where(advantage < 0, torch.minimum(loss, -advantage * dual_clip), loss)


def dppo_keeps(logprob: Tensor, old_logprob: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    """False where a token's probability has already moved far enough the way its advantage asks: by more than `high`
    up, or `low` down (DPPO). Unlike the ratio's, the limit does not depend on how rare the token is.
    [B, T] -> [B, T] bool
    """
    moved = logprob.exp() - old_logprob.exp()
    return ~(((advantage > 0) & (moved > high)) | ((advantage < 0) & (moved < -low)))


def cispo_loss(logprob: Tensor, ratio: Tensor, advantage: Tensor, high: float) -> Tensor:
    """-min(ratio, 1 + high) * A * log pi, the bounded ratio a constant (CISPO).  [B, T] -> [B, T]

    No token loses its gradient: the clip bounds how much it counts.
    """
    return -ratio.clamp(max=1.0 + high).detach() * advantage * logprob


def value_mse_loss(value: Tensor, returns: Tensor, old_value: Tensor, value_clip: float | None) -> Tensor:
    """0.5 * max((v - R)^2, (v_clipped - R)^2), v_clipped within value_clip of the rollout's v.  [B, T] -> [B, T]"""
    loss = (value - returns) ** 2
    if value_clip is not None:
        clipped = old_value + (value - old_value).clamp(-value_clip, value_clip)
        loss = torch.maximum(loss, (clipped - returns) ** 2)
    return 0.5 * loss


def approx_kl(logprob: Tensor, old_logprob: Tensor, mask: Tensor) -> Tensor:
    """0.5 * mean((logprob - old_logprob)^2): how far the update has moved the policy.  [B, T] -> scalar"""
    return 0.5 * masked_mean((logprob - old_logprob) ** 2, mask)


def entropy(logprobs: Tensor) -> Tensor:
    """- sum(p log p); entries of -inf carry no mass.  [..., V] -> [...]"""
    p = logprobs.exp()
    return -(p * logprobs.masked_fill(p == 0, 0.0)).sum(-1)


def bounded(x: Tensor, low: float, high: float) -> Tensor:
    """low + (high - low) * (1/2 + atan(x) / pi): any number into a range, 0 to its middle.  [...] -> [...]"""
    return low + (high - low) * (0.5 + torch.atan(x) / torch.pi)


def linear_decay(step: int, num_steps: int) -> float:
    """1 at step 0, 1/num_steps at the last step, never below: what a learning rate is multiplied with."""
    return max(1.0 - step / num_steps, 1.0 / num_steps)
