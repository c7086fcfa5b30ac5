"""The numbers of a step, computed from its finished table. meanings.py says what each of them means."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from burnish.maths import explained_variance, leave_one_out_mean, masked_mean
from burnish.processes import world
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
    group = torch.tensor(list(sa_pairs.groups))
    if len(group.unique()) < len(group):
        metrics["flat_groups"] = _flat_groups(score, group)
        metrics["group_explained"] = _group_explained(score, group)
    for name in ("entropy", "value", "returns"):
        if sa_pairs.has(name):
            metrics[name] = float(masked_mean(sa_pairs[name], mask))
    if sa_pairs.has("value") and sa_pairs.has("returns"):
        metrics["explained_variance"] = float(explained_variance(sa_pairs["value"], sa_pairs["returns"], mask))
    gap = sampler_gap(sa_pairs)
    return metrics if gap is None else metrics | {"sampler_gap": gap}


def _flat_groups(score: Tensor, group: Tensor) -> float:
    """Share of the groups of several responses whose scores [B] are all the same."""
    groups = [own for number in group.unique() if len(own := score[group == number]) > 1]
    return sum(bool((own == own[0]).all()) for own in groups) / len(groups)


def _group_explained(score: Tensor, group: Tensor) -> float:
    """How much of the variance of scores [B] the mean of the prompt's other responses predicts."""
    several = (group == group[:, None]).sum(1) > 1  # [B]
    return float(explained_variance(leave_one_out_mean(score, group), score, several))


def sampler_gap(sa_pairs: SAPairs) -> float | None:
    """Mean distance of the sampler's log-probabilities from a training pass's; None where they are the same ones."""
    if not sa_pairs.has("sampler_logprob"):
        return None
    return float(masked_mean((sa_pairs["logprob"] - sa_pairs["sampler_logprob"]).abs(), sa_pairs.mask))


def by_process(seconds: float) -> dict[str, Any]:
    """Where several processes make a step: how long each has worked, and how long they waited for each other."""
    if world.size() == 1:
        return {}
    waited = world.take_seconds_waited()
    both = world.gather([seconds - waited, waited])
    return {
        "seconds_by_process": {str(n): worked for n, (worked, _) in enumerate(both)},
        "seconds_waited": sum(waited for _, waited in both) / len(both),
    }
