"""Two measurements side by side, as words and numbers for a person; the terminal and the report show the same."""

from __future__ import annotations

import math
from typing import Any

# `z`: no "-0.00" from rounding
MEASURES = {
    "reward": ("reward", "{:z.3f}"),
    "second_reward": ("a second reward, not trained on", "{:z.3f}"),
    "rouge_l": ("ROUGE-L to the reference answer", "{:.3f}"),
    "kl": ("KL to the reference (nats)", "{:z.2f}"),
    "tokens": ("length (tokens)", "{:.1f}"),
    "finished": ("finished", "{:.0%}"),
}


def speakers_of(answer: dict[str, str]) -> dict[str, str]:
    """Who gave the answers to a prompt, and what they are called; of a row of answers.json."""
    if "base" in answer:
        return {"base": "base", "start": "start (SFT)", "tuned": "tuned (PPO)"}
    return {"start": "start", "tuned": "tuned"}


def comparison(start: dict[str, Any], tuned: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Measure, start and tuned, for a person to read; from two `Evaluation.as_dict`."""
    rows = []
    for name, (label, form) in MEASURES.items():
        if name in start:
            cells = [
                f"{form.format(s[name]['mean'])} ± {form.format(s[name]['half_interval_95'])}" for s in (start, tuned)
            ]
            rows.append((label, *cells))
    if "surprise" in start:
        rows.append(("perplexity of the base", _perplexity(start["surprise"]), _perplexity(tuned["surprise"])))
    for name, label in (("distinct_1", "distinct words"), ("distinct_2", "distinct word pairs")):
        rows.append((label, f"{start[name]:.2f}", f"{tuned[name]:.2f}"))
    return rows  # type: ignore[return-value]


def _perplexity(surprise: dict[str, float]) -> str:
    """The interval is that of the mean in nats; its exponential is not symmetric."""
    mean, half = surprise["mean"], surprise["half_interval_95"]
    return f"{math.exp(mean):.1f} ({math.exp(mean - half):.1f} to {math.exp(min(mean + half, 700)):.1f})"


def who_won(verdict: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Label, start and tuned, for a person to read; from `Verdict.as_dict`, or an older one without plain numbers."""
    rows = []
    for key, label in (
        ("win_rate", "better by the reward"),
        ("win_rate_by_second_reward", "better by a second one"),
        ("win_rate_by_people", "better to people"),
    ):
        if wins := verdict[key]:
            low, high = wins["interval"]
            share = f"({low:.0%} to {high:.0%})"
            if "wins" in wins:
                ties = f" ({wins['ties']} equal)" if wins["ties"] else ""
                rows.append((label + ties, f"{wins['losses']}", f"{wins['wins']} {share}"))
                if key != "win_rate_by_people" and wins["half_change_95"] is not None:
                    change = f"{wins['change']:+z.3f} ± {wins['half_change_95']:.3f}"
                    rows.append(("by how much on average", "", change))
            else:
                rows.append((f"{label} ({wins['num_prompts']})", "", f"{wins['rate']:.0%} {share}"))
    if best := verdict["best_of_n"]:
        beaten = f"beaten on {best['tuned_beats_it']:.0%}"
        rows.append((f"start's best of {best['n']:.0f}", f"{best['reward']:.3f}", beaten))
    for habit in verdict.get("habits", []):
        rows.append((f'answers that say "{habit["phrase"]}"', f"{habit['start']}", f"{habit['tuned']}"))
    return rows
