"""The numbers of a step, computed from its finished table. meanings.py says what each of them means."""

from __future__ import annotations

from torch import Tensor

from burnish.maths import explained_variance, masked_mean
from burnish.sa_pairs.table import SAPairs


def step_metrics(sa_pairs: SAPairs, score: Tensor, kl_coef: float) -> dict[str, float]:
    """What the finished table tells about its step; `score` [B] is each response's. Means are over real tokens or over
    responses. What the table does not hold (values, where there is no critic) is left out.
    """
    mask = sa_pairs.mask
    advantage = sa_pairs["advantage"][mask]
    metrics = {
        "reward": float(score.mean()),
        "reward_std": float(score.std(correction=0)),
        "kl": float(sa_pairs["exact_kl"].sum(1).mean()),
        "kl_coef": kl_coef,
        "response_tokens": float(sa_pairs.lengths.float().mean()),
        "finished": float(sa_pairs.finished.float().mean()) if sa_pairs.finished is not None else 0.0,
        "advantage_mean": float(advantage.mean()),
        "advantage_std": float(advantage.std(correction=0)),
    }
    for name in ("entropy", "value", "returns"):
        if sa_pairs.has(name):
            metrics[name] = float(masked_mean(sa_pairs[name], mask))
    if sa_pairs.has("value") and sa_pairs.has("returns"):
        metrics["explained_variance"] = float(explained_variance(sa_pairs["value"], sa_pairs["returns"], mask))
    gap = sampler_gap(sa_pairs)
    return metrics if gap is None else metrics | {"sampler_gap": gap}


def sampler_gap(sa_pairs: SAPairs) -> float | None:
    """Mean distance of the sampler's log-probabilities from a training pass's; None where they are the same ones."""
    if not sa_pairs.has("sampler_logprob"):
        return None
    return float(masked_mean((sa_pairs["logprob"] - sa_pairs["sampler_logprob"]).abs(), sa_pairs.mask))
