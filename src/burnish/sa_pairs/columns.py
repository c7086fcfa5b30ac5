"""The columns of the SA pairs: what each holds, and which component adds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """One column: its key in a row, what it holds, and the call that adds it."""

    row_key: str
    meaning: str
    added_by: str


COLUMNS: dict[str, Column] = {
    "action": Column("action", "id of the generated token", "SequenceGenerator.generate_sequences"),
    "logprob": Column(
        "logprob_policy", "log pi(a given s) when it was sampled", "SequenceGenerator.generate_sequences"
    ),
    "sampler_logprob": Column(
        "logprob_sampler",
        "in half precision, or from a server: the same as the sampler had it; `logprob_policy` is then a training "
        "pass's",
        "SequenceGenerator.generate_sequences",
    ),
    "ref_logprob": Column(
        "logprob_ref",
        "log pi(a given s) of the frozen reference, over its whole vocabulary",
        "SequenceGenerator.generate_sequences",
    ),
    "exact_kl": Column(
        "exact_kl",
        "KL of the distribution it was sampled from to the reference's: the whole sum, not a sample",
        "SequenceGenerator.generate_sequences",
    ),
    "entropy": Column(
        "entropy", "entropy of the distribution it was sampled from", "SequenceGenerator.generate_sequences"
    ),
    "kl": Column(
        "kl", "distance to the reference, as it is charged (`kl_estimator`)", "KLDivergence.add_kl_to_sa_pairs"
    ),
    "reward": Column(
        "reward", "-kl_coef * kl (0 with `kl_in: loss`), plus the score", "RewardAdjuster.adjust_rewards_with_kl"
    ),
    "value": Column("value", "V(s), predicted before the action", "ValueAdder.add_values_to_sa_pairs"),
    "td_error": Column("td_error", "r + gamma * V(s') - V(s)", "TDError.compute_td_errors"),
    "advantage": Column("advantage", "GAE, before whitening", "GAEAdvantage.compute_gae_advantages"),
    "returns": Column("return", "what the value model learns to predict", "ReturnCalculator.add_reward_to_go"),
    "ratio": Column(
        "ratio", "probability over that when it was sampled, at the last training pass", "ModelTrainer.add_ratios"
    ),
    "clipped": Column("clipped", "1 where that ratio had left the clip range, else 0", "ModelTrainer.add_ratios"),
}
COLUMN_OF_ROW_KEY = {column.row_key: name for name, column in COLUMNS.items()}
ROW_KEYS = ("prompt_id", "position", "group", "state", "kept", "finished", *COLUMN_OF_ROW_KEY)


def row_key_of(name: str) -> str:
    """A column's key in a row; one that somebody else added has its own name there."""
    return COLUMNS[name].row_key if name in COLUMNS else name
