"""Everything that the page shows, gathered from a run folder."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from burnish.errors import InputError, count
from burnish.ppo.meanings import METRICS
from burnish.runs.run import Run
from burnish.sa_pairs.columns import COLUMNS
from burnish.show.charts import Chart, Line, series, short
from burnish.show.comparison import comparison, speakers_of, who_won
from burnish.show.credit import credit_sentence, unmeasured_sentence
from burnish.show.earlier_stages import earlier_stages
from burnish.show.health import band_of
from burnish.show.samples import spread_samples
from burnish.text import headline, hider, minutes, visible

SHOWN_RESPONSES = 6
SHOWN_ANSWERS = 6
LONGEST_HEADLINE = 140

CHARTS: dict[str, tuple[str, str]] = {
    "reward": ("Reward", "score"),
    "kl": ("KL to the reference", "nats per response"),
    "entropy": ("Entropy", "nats per token"),
    "response_tokens": ("Response length", "tokens"),
    "clip_fraction": ("Clip fraction", "share of tokens"),
    "explained_variance": ("Explained variance", "share"),
    "group_explained": ("Explained by the prompt's other responses", "share"),
    "approx_kl": ("Size of the update", "nats per token"),
    "policy_loss": ("Policy loss", ""),
    "value_loss": ("Value loss", ""),
    "learning_rate": ("Learning rate", ""),
    "seconds": ("Seconds per step", "s"),
}
"""Metric, title and unit."""

COLUMN_NAMES = {
    "logprob_policy": "log-probability",
    "logprob_ref": "... of the reference",
    "exact_kl": "KL",
    "kl": "KL charged",
    "reward": "reward",
    "value": "value",
    "td_error": "TD error",
    "advantage": "advantage",
    "return": "return",
}
SHADES = {
    "advantage": (
        "how much better the response went from there than the value model expected; under the default settings less "
        "the step's mean, which the update subtracts too",
        "made more likely",
        "made less likely",
    ),
    "td_error": (
        "what this one token brought: its reward, and how it changed what the value model expects",
        "better than expected",
        "worse than expected",
    ),
    "kl": (
        "where the policy speaks unlike its reference",
        "more likely than the reference finds it",
        "less likely",
    ),
}
"""What tokens can be coloured by: the meaning, and what above and below 0 say."""
OF_THE_RESPONSE = (
    "how much more the response earned than what it was compared with, such as the prompt's other responses",
    "made more likely",
    "made less likely",
)


@dataclass(frozen=True)
class Token:
    """One generated token: its text, and all that is known of it."""

    text: str
    shades: dict[str, tuple[float, int]]
    """For each of SHADES its number, and how strongly that colours it, from 0 to 100."""
    numbers: list[tuple[str, str]]


@dataclass(frozen=True)
class Response:
    step: int
    headline: str
    prompt: str
    score: float
    tokens: list[Token]


def report_page(run: Run) -> str:
    """The HTML of a PPO run."""
    if run.stage != "ppo":
        raise InputError(f"{run.folder} is a run of `burnish {run.stage}`; a report needs a PPO run")
    rows = run.read_lines("metrics.jsonl")
    if not rows:
        raise InputError(f"{run.folder} has no finished step yet, so there is nothing to report")
    # Secrets are taken out of what the page is made of: escaped for HTML, they would not be recognised any more.
    hide = hider()
    verdict = hide(run.read("verdict.json")) if run.has("verdict.json") else None
    # Runs of older versions kept sampled answers only: those of their verdict.
    answers = hide(run.read("answers.json"))["answers"] if run.has("answers.json") else []
    settings = hide(run.settings)
    result = run.read("result.json") if run.is_complete else {}
    samples = hide(spread_samples(run.path("samples.jsonl"), SHOWN_RESPONSES))
    known = set().union(*samples) & set(COLUMN_NAMES)  # without a critic there is no value, TD error or return
    environment = Environment(
        autoescape=True,
        finalize=lambda value: visible(hide(value)) if type(value) is str else value,  # markup is escaped already
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = short
    template = environment.from_string((files("burnish.show") / "template.html").read_text(encoding="utf-8"))
    return template.render(
        name=run.name,
        verdict=verdict,
        measures=comparison(verdict["start"], verdict["tuned"]) if verdict else [],
        who_won=who_won(verdict) if verdict else [],
        answers=_answers(answers or (verdict or {}).get("answers", [])),
        how="The most likely" if answers else "Sampled",
        charts=_charts(rows),
        responses=_responses(samples, _subtracted_means(rows, settings)),
        probes=_probes(hide(run.read_lines("probes.jsonl"))),
        shades={key: (COLUMN_NAMES[key], *texts) for key, texts in _shades(known).items()},
        columns={COLUMN_NAMES[c.row_key]: c.meaning for c in COLUMNS.values() if c.row_key in known},
        trust=_trust(run, rows),
        settings={k: v for k, v in settings.items() if v is not None},
        steps=count(len(rows), "PPO step"),
        minutes=minutes(int(result.get("seconds") or sum(r.get("seconds", 0.0) for r in rows))),
        facts=_facts(settings, result),
        earlier_stages=earlier_stages(run),
    )


# ------------------------------------------------------------------------------------------------------- the parts


def _charts(rows: list[dict[str, Any]]) -> list[Chart]:
    charts = []
    for key, (title, _) in CHARTS.items():
        line = series(rows, key, title.lower())
        if line is not None:
            metric = METRICS[key]
            lines = [line, *(_reward_parts(rows) if key == "reward" else [])]
            charts.append(Chart(title, metric.meaning, metric.healthy, metric.red_flag, lines, band_of(key)))
    return charts


def _reward_parts(rows: list[dict[str, Any]]) -> list[Line]:
    """The components, where there is more than one."""
    names = list(dict.fromkeys(name for r in rows for name in r.get("reward_parts") or {}))
    if len(names) < 2:
        return []
    lines = (series([{"step": r["step"]} | (r.get("reward_parts") or {}) for r in rows], name) for name in names)
    return [line for line in lines if line is not None]


def _shades(known: set[str]) -> dict[str, tuple[str, str, str]]:
    """Without a value model, KL first: the advantage is then the response's, and says nothing of a single token."""
    if "value" in known:
        return {key: texts for key, texts in SHADES.items() if key in known}
    return {key: texts for key, texts in (("kl", SHADES["kl"]), ("advantage", OF_THE_RESPONSE)) if key in known}


def _trust(run: Run, rows: list[dict[str, Any]]) -> str:
    """How far the tokens' colours may be trusted."""
    if run.has("credit.json"):
        return credit_sentence(run.read("credit.json"))
    return unmeasured_sentence(rows, os.path.relpath(run.folder))  # as it is typed here, however the run was named


def _subtracted_means(rows: list[dict[str, Any]], settings: dict[str, Any]) -> dict[int, float]:
    """By step, what its update subtracts from every advantage: a token above it is made more likely."""
    whitened = settings.get("whiten_advantages", True)
    return {r["step"]: r.get("advantage_mean", 0.0) if whitened else 0.0 for r in rows}


def _responses(samples: list[dict[str, Any]], subtracted: dict[int, float]) -> list[Response]:
    """The last step first: it is what one wants to see."""
    return [_response(sample, subtracted.get(sample["step"], 0.0)) for sample in reversed(samples)]


def _response(sample: dict[str, Any], subtracted: float) -> Response:
    # k1 whatever kl_estimator was charged: only it has a sign.
    signed_kl = [a - b for a, b in zip(sample["logprob_policy"], sample["logprob_ref"], strict=True)]
    shown = {key: sample[key] for key in SHADES if key in sample} | {"kl": signed_kl}
    shown["advantage"] = [a - subtracted for a in sample["advantage"]]
    largest = {key: max(map(abs, values), default=0.0) or 1.0 for key, values in shown.items()}
    tokens = []
    for position, text in enumerate(sample["tokens"]):
        numbers = [(label, f"{sample[key][position]:+.3f}") for key, label in COLUMN_NAMES.items() if key in sample]
        own = {key: values[position] for key, values in shown.items()}
        shades = {key: (value, round(100 * math.sqrt(abs(value) / largest[key]))) for key, value in own.items()}
        tokens.append(Token(text.replace("\n", "\u21b5"), shades, numbers))
    score = sample["score"]
    return Response(
        sample["step"],
        headline(sample["prompt"], LONGEST_HEADLINE),
        sample["prompt"],
        sum(score) if isinstance(score, list) else score,
        tokens,
    )


def _probes(rows: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The same prompts, answered as training went on."""
    by_prompt: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_prompt.setdefault(row["prompt"], []).append(row)
    return [(headline(prompt, LONGEST_HEADLINE), answers) for prompt, answers in by_prompt.items()]


def _answers(rows: list[dict[str, str]]) -> list[tuple[str, list[tuple[str, str]]]]:
    """For each prompt its headline, and who said what."""
    return [
        (
            headline(answer["prompt"], LONGEST_HEADLINE),
            [(called, answer[name]) for name, called in speakers_of(answer).items()],
        )
        for answer in rows[:SHOWN_ANSWERS]
    ]


def _facts(settings: dict[str, Any], result: dict[str, Any]) -> list[str]:
    """What was run, on what, when and with what."""
    versions, machine = result.get("versions", {}), result.get("machine")
    return [
        str(settings.get("model_name", "")),
        f"prompts: {settings['prompts']}" if "prompts" in settings else "",
        f"finished {result['finished']}" if "finished" in result else "",
        f"{count(machine['cores'], 'core')}, {machine['memory_gib']} GiB" if machine else "",  # older runs do not say
        ", ".join(f"{name} {version}" for name, version in versions.items()),
    ]
