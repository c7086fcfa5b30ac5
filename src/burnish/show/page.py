"""Everything that the page shows, gathered from a run folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from burnish.drawing.charts import short
from burnish.drawing.comparison import comparison, speakers_of, who_won
from burnish.drawing.curves import charts_of
from burnish.drawing.tokens import COLUMN_NAMES, Token, shades_of, tokens_of
from burnish.errors import InputError, count
from burnish.ppo.meanings import METRICS
from burnish.runs.run import Run
from burnish.sa_pairs.columns import COLUMNS
from burnish.show.credit import credit_sentence, unmeasured_sentence
from burnish.show.earlier_stages import earlier_stages
from burnish.show.samples import spread_samples
from burnish.text import headline, hider, minutes, visible

SHOWN_RESPONSES = 6
SHOWN_ANSWERS = 6
LONGEST_HEADLINE = 140


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
        charts=charts_of(rows, told=_told),
        responses=_responses(samples, _subtracted_means(rows, settings)),
        probes=_probes(hide(run.read_lines("probes.jsonl"))),
        shades={key: (COLUMN_NAMES[key], *texts) for key, texts in shades_of(known).items()},
        columns={COLUMN_NAMES[c.row_key]: c.meaning for c in COLUMNS.values() if c.row_key in known},
        trust=_trust(run, rows),
        settings={k: v for k, v in settings.items() if v is not None},
        steps=count(len(rows), "PPO step"),
        minutes=minutes(int(result.get("seconds") or sum(r.get("seconds", 0.0) for r in rows))),
        facts=_facts(settings, result),
        earlier_stages=earlier_stages(run),
    )


# ------------------------------------------------------------------------------------------------------- the parts


def _told(metric: str) -> tuple[str, str, str]:
    return METRICS[metric].meaning, METRICS[metric].healthy, METRICS[metric].red_flag


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
    score = sample["score"]
    return Response(
        sample["step"],
        headline(sample["prompt"], LONGEST_HEADLINE),
        sample["prompt"],
        sum(score) if isinstance(score, list) else score,
        tokens_of(sample, subtracted),
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
