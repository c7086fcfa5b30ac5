"""Writes what the docs take from elsewhere:  python docs/make_tables.py

docs/config.md, docs/metrics.md and the table of docs/recipes.md from the code; in README and other pages the tables
between `<!-- results: NAME -->` and `<!-- end -->` from benchmarks/results/NAME.json, as the benchmarks left them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import partial
from html import escape
from pathlib import Path
from statistics import mean
from typing import Any

from burnish.config.documentation import as_yaml, field_lines
from burnish.config.recipes import RECIPES
from burnish.decoder.shared_base import decoder_of
from burnish.ppo.meanings import METRICS
from burnish.sa_pairs.columns import COLUMNS

ROOT = Path(__file__).parent.parent
SETTINGS = {
    "trl": "TRL 1.12.0",
    "plain": "plain LoRA: sequence scope, all layers",
    "response": "response scope, all layers",
    "top_third": "response scope, top third of the layers",
    "default": "burnish's defaults",
}

LENGTHS = {"short": "prompts of 16-64 tokens", "tldr": "of 200-400 tokens"}


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def measured_on(results: dict[str, Any]) -> str:
    m = results["machine"]
    cores = "1 core" if m["cores"] == 1 else f"{m['cores']} cores"
    return (
        f"(Measured on {cores}, {m['cpu']}, {m['memory_gib']} GiB, torch {m['torch']};\n"
        f"{m['matmul_gflops']} GFLOP/s in large fp32 products at the end of the run.)"
    )


def vs_trl(results: dict[str, Any]) -> str:
    """One row per setting: a step on short prompts, then on long ones."""
    measured: dict[str, dict[str, tuple[float, float]]] = {}
    for row in results["rows"]:
        seconds, peak = (mean(r[key] for r in row["rounds"]) for key in ("seconds", "peak_gb"))
        measured.setdefault(row["shape"], {})[row["setting"]] = (seconds, peak)
    rows = []
    for setting, name in SETTINGS.items():
        cells = [name]
        for shape in measured.values():
            (seconds, peak), (their_seconds, their_peak) = shape[setting], shape["trl"]
            faster, smaller = f", **{their_seconds / seconds:.1f}x**", f", {peak / their_peak:.2f} of it"
            ours = setting != "trl"
            cells += [f"{seconds:.0f} s{faster if ours else ''}", f"{peak:.1f} GB{smaller if ours else ''}"]
        rows.append(cells)
    header = ["a PPO step", *(f"{what}, {LENGTHS[shape]}" for shape in measured for what in ("time", "peak memory"))]
    return table(header, rows) + "\n\n" + measured_on(results)


def step_profile(results: dict[str, Any]) -> str:
    parts = []
    for name, run in results["runs"].items():
        rows = []
        for part, gflop in run["gflop"].items():
            seconds = run["seconds"].get(part, 0.0)
            rate = gflop / seconds / run["rate"] if gflop else 0.0
            rows.append([part, f"{seconds:.2f}", f"{gflop:.0f}" if gflop else "", f"{rate:.0%}" if gflop else ""])
        total = sum(run["gflop"].values())
        rows.append(["**the step**", f"{run['step']:.2f}", f"{total:.0f}", f"**{run['share']:.0%}**"])
        parts.append(
            f"Adapters on {name}; {run['rate']:.0f} GFLOP/s in large products, {run['time_in_products']:.0%} of the\n"
            f"time in products and attention:\n\n"
            + table(["part", "seconds", "GFLOP", "share of the machine's rate"], rows)
        )
    return "\n\n".join([*parts, measured_on(results)])


def scaling(results: dict[str, Any]) -> str:
    rows = []
    for axis, r in results["results"].items():
        passes = [p["prefix_passes"] + p["end_passes"] for p in r["points"]]
        rows.append(
            [
                f"`{axis}`",
                ", ".join(map(str, r["values"])),
                ", ".join(f"{p['seconds']:.1f}" for p in r["points"]),
                f"{r['exponent']:.2f}",
                f"{r['last_doubling']:.2f}",
                ", ".join(f"{p:.2f}" for p in passes),
            ]
        )
    header = ["axis", "values", "seconds a step", "growth", "last doubling", "passes per prompt token"]
    return table(header, rows) + "\n\n" + measured_on(results)


def time_to_reward(results: dict[str, Any]) -> str:
    """One row per method: steps and seconds of each seed."""
    rows = []
    for r in results["rows"]:
        steps = [f"{run['steps']}" if run["reached"] else f"more than {run['steps']}" for run in r["runs"]]
        total = sum(run["steps"] for run in r["runs"]) * r["seconds"]
        rate = f"{r['learning_rate']:g}"
        rows.append([r["method"], rate, f"{r['seconds']:.1f} s", ", ".join(steps), f"**{total:.0f} s**"])
    header = ["method", "learning rate", "a step", "steps to the goal, by seed", "seconds, all seeds"]
    sweeps = [
        f"{r['method']}: "
        + ", ".join(
            f"{run['learning_rate']:g} ({run['steps']} steps"
            + ("" if run["reached"] else f", then at {run['rewards'][-1]:.2f}")
            + ")"
            for run in sorted(r["sweep"], key=lambda run: run["learning_rate"])
        )
        for r in results["rows"]
    ]
    where = "Learning rates tried, on a seed that is not in the table (those of TRL's PPO: on seed 0):"
    tried = where + "\n\n" + "\n".join(f"- {line}" for line in sweeps)
    return "\n\n".join([table(header, rows), tried, measured_on(results)])


def scopes(results: dict[str, Any]) -> str:
    """One row per task and choice, with all its seeds."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in results["rows"]:
        found.setdefault((row["task"], row["choice"]), []).append(row)
    rows = [
        [
            task,
            choice,
            f"{mean(r['before'] for r in own):.2f}",
            f"**{mean(r['after'][0] for r in own):.2f}**",
            ", ".join("{:.2f} ± {:.2f}".format(*r["after"]) for r in own),
            f"{mean(r['kl'] for r in own):.1f}",
        ]
        for (task, choice), own in sorted(found.items(), key=lambda item: item[0][0])
    ]
    header = ["task", "adapters act on", "before", "after, mean", "by seed", "KL (nats)"]
    return table(header, rows) + "\n\n" + measured_on(results)


def groups(results: dict[str, Any]) -> str:
    rows = [
        [
            r["name"],
            f"{r['seconds']:.1f} s",
            f"{r['seconds_generate_sequences']:.1f} s",
            f"{r['training']:.1f} s",
            f"{r['buffer_mb']:.0f} MB",
            f"{r['peak_gb']:.2f} GB",
        ]
        for r in results["rows"]
    ]
    header = ["responses to a prompt", "a step", "rollout", "training", "held for training", "peak memory"]
    return table(header, rows) + "\n\n" + measured_on(results)


def tricks(results: dict[str, Any]) -> str:
    rows = [[n, f"{b:.3f} s", f"{a:.3f} s", f"{b / a:.2f}x"] for n, (b, a) in results["rows"].items()]
    return table(["idea", "before", "after", "faster"], rows) + "\n\n" + measured_on(results)


def on_paper(results: dict[str, Any]) -> str:
    columns = results["rows"]
    keys = next(iter(columns.values()))
    rows = [[k if "GB" in k else f"{k} (s)", *(f"{c[k]:.2f}" for c in columns.values())] for k in keys]
    rows.append(["**a step at least (s)**", *(f"**{s:.1f}**" for s in results["summary"].values())])
    return table(["", *columns], rows)


def kl_charge(results: dict[str, Any]) -> str:
    rows = [
        [
            f"`{r['place']}`",
            f"`{r['estimator']}`" + ("" if r["offered"] else " (refused)"),
            f"{r['beta']:g}",
            f"{r['top_p']:g}",
            f"**{r['reached']:.1%}**",
            f"{r['possible']:.1%}",
            f"{r['kl']:.2f}",
            f"{r['reported_kl']:.2f}",
        ]
        for r in results["rows"]
    ]
    header = [
        "`kl_in`",
        "`kl_estimator`",
        "`kl_coef`",
        "`top_p`",
        "reached",
        "possible",
        "KL, computed",
        "KL, reported",
    ]
    return table(header, rows)


def kl_learning(results: dict[str, Any]) -> str:
    rows = [
        [
            f"{r['way']}",
            f"{r['seed']}",
            f"{r['before']:.3f}",
            "**{:.3f}** ± {:.3f}".format(*r["after"]),
            "{:.1f} ± {:.1f}".format(*r["kl"]),
        ]
        for r in sorted(results["rows"], key=lambda r: r["way"] != "k1 in the reward")
    ]
    header = ["the KL is charged as", "seed", "reward before", "after", "KL after (nats)"]
    return table(header, rows) + "\n\n" + measured_on(results)


def quantised(results: dict[str, Any]) -> str:
    """One row for each way to store the base, with all its seeds."""
    gaps = {gap["base"]: gap for gap in results["gaps"]}
    found: dict[str, list[dict[str, Any]]] = {}
    for row in results["rows"]:
        found.setdefault(row["kind"], []).append(row)
    rows = [
        [
            kind,
            f"{own[0]['base_mb']} MB",
            f"{mean(r['peak_gb'] for r in own):.2f} GB",
            f"{mean(r['seconds'] for r in own):.1f} s",
            f"{mean(r['before'] for r in own):.2f}",
            f"**{mean(r['after'][0] for r in own):.2f}**",
            ", ".join("{:.2f} ± {:.2f}".format(*r["after"]) for r in own),
            f"{gaps[kind]['kl_of_base']:.4f}" if kind in gaps else "",
            f"{gaps[kind]['agreed']:.1%}" if kind in gaps else "",
        ]
        for kind, own in found.items()
    ]
    header = ["base", "its weights", "peak memory", "a step", "reward before", "after, mean", "by seed"]
    header += ["KL from the float32 base (nats a token)", "same most likely token"]
    return table(header, rows) + "\n\n" + measured_on(results)


def distilled(results: dict[str, Any]) -> str:
    """One row for each run that was distilled; what was refused is told below."""
    rows, refused = [], []
    for r in results["rows"]:
        name = f"{r['task']}, seed {r['seed']}"
        if "refused" in r:
            refused.append(f"{name} was refused: {r['refused']}")
            continue
        rewards = ("start", "reward_before", "reward_after")
        rows.append(
            [
                name,
                *("{:.2f} ± {:.2f}".format(*r[side]) for side in rewards),
                *(f"{r[kl]:.4f}" for kl in ("kl_of_base", "kl_at_start")),
                f"**{r['kl']:.4f}**",
                f"{r['same_answers']} of {r['num_answers']}",
                f"{r['updates']}",
                f"{r['training_seconds']} s, {r['export_seconds']} s",
            ]
        )
    header = ["run", "reward of the start", "trained", "ordinary LoRA", "KL of the trained model to the start"]
    header += [
        "to the LoRA as it begins",
        "to the finished LoRA",
        "equal greedy answers",
        "updates",
        "training, export",
    ]
    return "\n\n".join([table(header, rows), *refused, measured_on(results)])


def scaleout(results: dict[str, Any]) -> str:
    """Local and served rollouts, a row for each seed."""
    rows = [
        [
            "burnish's own decoder" if r["side"] == "local" else "a vLLM server",
            f"{r['seed']}",
            f"{r['seconds']:.1f} s",
            f"{r['rollout_seconds']:.1f} s",
            f"{r['tokens_per_second']:.0f}",
            "-" if r["sampler_gap"] is None else f"{r['sampler_gap']:.1e}",
            "-" if r["weight_cut"] is None else f"{r['weight_cut']:.3f}",
            f"{r['before']:.2f}",
            "**{:.2f}** ± {:.2f}".format(*r["after"]),
            f"{r['kl']:.1f}",
        ]
        for r in results["rollouts"]
    ]
    header = ["responses from", "seed", "a step", "rollout", "tokens/s", "largest `sampler_gap` (nats)"]
    header += ["largest `weight_cut`", "reward before", "after", "KL after (nats)"]
    return table(header, rows) + "\n\n" + measured_on(results)


def processes(results: dict[str, Any]) -> str:
    """Several processes, with a whole and with a sharded base."""
    rows = [
        [
            f"{r['processes']}",
            "sharded" if r["shard"] else "whole",
            "burnish's own decoder" if r["side"] == "local" else "a vLLM server",
            f"{r['seconds']:.1f} s",
            f"{r['waited']:.0%}",
            f"{r['peak_bytes'] / 1e6:.0f} MB",
            f"{r['bound_bytes'] / 1e6:.0f} MB" if "bound_bytes" in r else "-",
            f"{r['loading_bytes'] / 1e6:.0f} MB",
            f"{r['loss_difference']:.1e}",
        ]
        for r in results["processes"]
    ]
    header = ["processes", "base", "responses from", "a step", "of it sending and waiting", "peak of a process"]
    header += ["with 1/N of the base, and 15 %", "peak while loading", "losses off by"]
    return table(header, rows) + "\n\n" + measured_on(results)


def on_paper_scaleout(results: dict[str, Any]) -> str:
    """Calculated: one row for each model, number of GPUs and way."""
    rows = [
        [
            r["model"],
            f"{r['gpus']}",
            r["way"],
            f"{r['gigabytes']:.0f} GB",
            f"{r['step']:.1f} s" if r["fits"] else "does not fit",
            f"{r['tokens']:.0f}" if r["fits"] else "-",
            f"{r['gradients']:.1f} GB",
            f"{r['layers']:.0f} GB" if r["layers"] else "-",
        ]
        for r in results["rows"]
    ]
    header = ["base", "GPUs", "how", "memory of a GPU", "a step, at least", "tokens/s, at most"]
    return table([*header, "gradients sent, a GPU and step", "layers sent"], rows)


def sharing(results: dict[str, Any]) -> str:
    """One row for each way and family; ratios to the first way of the family."""
    rows = [
        [f"`{family}`", what, f"`{scope}`", f"{seconds:.2f} s", f"{ratio:.2f}"]
        for family, ways in results["summary"].items()
        for (what, scope), (seconds, ratio) in ((name.split(", "), own) for name, own in ways.items())
    ]
    header = ["family", "what is shared", "`adapter_scope`", "a step", "beside the family's first"]
    return table(header, rows) + "\n\n" + measured_on(results)


def predicted_memory(results: dict[str, Any]) -> str:
    rows = [
        [
            f"`{r['family']}`",
            f"{r['parameters'] / 1e6:.0f} million",
            "the fast path" if "trunk" in r["sharing"] else r["sharing"],
            f"`{r['scope']}`",
            f"{r['peak']:,} MB",
            f"{r['predicted']:,} MB",
            f"**{r['predicted'] / r['peak'] - 1:+.0%}**",
            f"{(r['predicted'] - r['held']) / (r['peak'] - r['held']) - 1:+.0%}",
        ]
        for r in results["rows"]
    ]
    header = ["family", "parameters", "what is shared", "`adapter_scope`", "peak", "predicted", "off", "off, work"]
    return table(header, rows) + "\n\n" + measured_on(results)


def credit(results: dict[str, Any]) -> str:
    """Each kind of credit against what continuations earned, and what the value model explained as it learned."""

    def agreement(row: dict[str, Any], column: str) -> str:
        if column not in row["agreements"]:
            return "-"
        a = row["agreements"][column]
        return (
            f"**{a['correlation']:.2f}** ({a['low']:.2f} to {a['high']:.2f}), at best {a['best']:.2f}, "
            f"slope {a['slope']:.2f}"
        )

    rows = [
        [
            r["way"],
            f"{r['seed']}",
            *(agreement(r, column) for column in ("value", "td_error", "advantage")),
            ", ".join(f"{share:.2f}" for share in r["explained_variance"]) or "-",
            f"{r['foreseeable']['share']:.2f} ({r['foreseeable']['low']:.2f} to {r['foreseeable']['high']:.2f})",
        ]
        for r in sorted(results["rows"], key=lambda r: list(results["summary"]).index(r["way"]))
    ]
    header = ["recipe", "seed", "values", "TD errors", "advantages", "explained variance by step", "foreseeable"]
    told = (
        "Correlations with their 95 % intervals. At best: what perfect credit could show, since the continuations are\n"
        "a sample too. Slope: by how much the truth changes where the credit changes by one; 1 is calibrated.\n"
        "Foreseeable: the share of the returns' variance that is decided before the next token is drawn, which is the\n"
        "most that any value model could explain."
    )
    return "\n\n".join([table(header, rows), told, measured_on(results)])


def beside(results: dict[str, Any]) -> str:
    rows = []
    for spin, own in results["medians"].items():
        ratios = results["summary"][spin]
        rows.append([spin, *(f"{own[where]:.1f} s, {ratios[where]:.2f}x" for where in own)])
    header = ["waiting threads spin as", "alone", "beside one busy program", "two runs side by side"]
    return table(header, rows) + "\n\n" + measured_on(results)


def torture(results: dict[str, Any]) -> str:
    rows = [
        [name, ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in result.items())]
        for name, result in results["results"].items()
    ]
    return table(["torment", "result"], rows) + "\n\n" + measured_on(results)


def reward_model(results: dict[str, Any]) -> str:
    rows = []
    for name, s in results["summary"].items():
        mine = [r for r in results["rows"] if r["set"] == name]
        low, high = s["interval"]
        rows.append(
            [
                name,
                f"{mine[0]['num_train']}, {mine[0]['num_pairs']}",
                f"**{s['accuracy']:.1%}** ({low:.0%} to {high:.0%})",
                ", ".join(f"{a:.1%}" for a in s["by_seed"]),
                f"{s['longer_wins']:.1%}",
                f"{s['bag_of_words']:.1%}",
                f"{mean(r['calibration_error'] for r in mine):.2f}",
                f"{mean(r['length_correlation'] for r in mine):+.2f}",
            ]
        )
    header = ["judgements", "train, held-out pairs", "accuracy (95 %)", "by seed", "longer wins", "bag of words"]
    return table([*header, "calibration error", "score and length"], rows) + "\n\n" + measured_on(results)


def pipeline(results: dict[str, Any], without: tuple[str, ...] = ()) -> str:
    """One row per measure, start and tuned; one column per seed."""
    runs = results["rows"]

    def both(measure: str, digits: int = 2) -> list[str]:
        cells = []
        for r in runs:
            start, tuned = r["start"][measure], r["tuned"][measure]
            cells.append(
                " to ".join(f"{v['mean']:.{digits}f} ± {v['half_interval_95']:.{digits}f}" for v in (start, tuned))
            )
        return cells

    def wins(key: str) -> list[str]:
        """On how many prompts it is better and worse, and the interval of its share of them."""
        cells = []
        for own in (r[key] for r in runs):
            share = "({:.0%} to {:.0%})".format(*own["interval"])
            ties = f", equal on {own['ties']}" if own.get("ties") else ""
            # Results that were measured earlier have no plain numbers.
            tally = f"{own['wins']}, worse on {own['losses']}{ties}" if "wins" in own else f"{own['rate']:.0%}"
            cells.append(f"{tally} {share}")
        return cells

    def habit(found: list[dict[str, Any]]) -> str:
        return '"{phrase}", {start} to {tuned}'.format(**found[0]) if found else "-"

    rows = []
    if "sft_loss" in runs[0]:
        rows.append(["SFT: held-out loss (nats a token)", *("{:.2f} to {:.2f}".format(*r["sft_loss"]) for r in runs)])
    if runs[0]["reward_model"]:
        cells = [
            "{:.0%} ({:.0%} to {:.0%})".format(r["reward_model"]["accuracy"], *r["reward_model"]["accuracy_interval"])
            for r in runs
        ]
        rows.append(["reward model: held-out accuracy", *cells])
    if runs[0]["score_correlation"] is not None:
        rows.append(["reward model: correlation with labels", *(f"{r['score_correlation']:.2f}" for r in runs)])
    rows += [["PPO: reward", *both("reward")], ["second reward", *both("second_reward")]]
    if "rouge_l" in runs[0].get("base", {}):
        base = [r["base"]["rouge_l"] for r in runs]
        rows.append(["ROUGE-L of the base", *(f"{b['mean']:.3f} ± {b['half_interval_95']:.3f}" for b in base)])
    if "rouge_l" in runs[0]["start"]:
        rows.append(["ROUGE-L", *both("rouge_l", 3)])
    rows += [
        ["length (tokens)", *both("tokens", 0)],
        ["KL (nats)", *(f"{r['tuned']['kl']['mean']:.1f}" for r in runs)],
        ["better by the reward", *wins("win_rate")],
        ["better by the second reward", *wins("win_rate_by_second_reward")],
        ["start's best of 4, reward", *(f"{r['best_of_n']['reward']:.2f}" for r in runs)],
    ]
    if "references" in runs[0]:
        authors = [r["references"] for r in runs]
        rows.append(
            ["authors' own answers, reward", *("{mean:.2f} ± {half_interval_95:.2f}".format(**a) for a in authors)]
        )
    if any(r.get("habits") for r in runs):
        rows.append(["a new habit, and how many answers have it", *(habit(r["habits"]) for r in runs)])
    rows += [
        ["**verdict**", *(f"**{r['outcome']}**" for r in runs)],
        ["reward by step", *(", ".join(f"{reward:.2f}" for _, reward, _ in r["curve"]) for r in runs)],
    ]
    rows = [row for row in rows if row[0] not in without]
    return table(["start to tuned", *(f"seed {r['seed']}" for r in runs)], rows) + "\n\n" + measured_on(results)


def demo(results: dict[str, Any]) -> str:
    """What README has room for."""
    return pipeline(results, without=("ROUGE-L of the base", "reward by step"))


def alternatives(results: dict[str, Any]) -> str:
    """One row per way and seed, all from the same demonstrations and judgements."""

    def cell(row: dict[str, Any], measure: str, digits: int) -> str:
        found = row["measures"].get(measure)
        return "-" if found is None else f"{found[0]:.{digits}f} ± {found[1]:.{digits}f}"

    rows = [
        [
            r["way"],
            f"{r['seed']}",
            cell(r, "reward", 2),
            cell(r, "second_reward", 2),
            cell(r, "rouge_l", 3),
            cell(r, "kl", 1),
            cell(r, "tokens", 0),
            f"{r['wins']}, worse on {r['losses']} ({r['interval'][0]:.0%} to {r['interval'][1]:.0%})"
            if "wins" in r
            else "-",
            f"{r['seconds']} s" if r["seconds"] else "-",
        ]
        for r in results["rows"]
    ]
    header = ["way", "seed", "reward model", "TL;DR rule", "ROUGE-L", "KL to SFT (nats)", "tokens"]
    return table([*header, "better than SFT by the reward", "training"], rows) + "\n\n" + measured_on(results)


def token_by_token(results: dict[str, Any]) -> str:
    """One row per token of one response."""
    columns = ("logprob_policy", "logprob_ref", "kl", "reward", "value", "td_error", "advantage", "return")
    rows = []
    for row in results["rows"]:
        token = escape(row["token"].strip()).replace("|", "&#124;")
        rows.append([f"<code>{token}</code>", *(f"{row[column]:.4f}" for column in columns)])
    header = ["token", "logprob", "ref_logprob", "KL", "reward", "value", "TD error", "advantage", "return"]
    return table(header, rows)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    f.__name__: f
    for f in (
        vs_trl,
        step_profile,
        scaling,
        time_to_reward,
        scopes,
        groups,
        tricks,
        on_paper,
        torture,
        reward_model,
        kl_charge,
        kl_learning,
        quantised,
        distilled,
        sharing,
        predicted_memory,
        credit,
        alternatives,
        demo,
        beside,
        scaleout,
        token_by_token,
        processes,
        on_paper_scaleout,
    )
} | {
    "tldr_pipeline": pipeline,
    "sentiment_pipeline": pipeline,
    "reward_model_more": reward_model,
    "torture_two": torture,
}


def with_results(page: str) -> str:
    """The page with its tables made anew."""

    def made(match: re.Match[str]) -> str:
        file = ROOT / "benchmarks" / "results" / f"{match[1]}.json"
        body = TABLES[match[1]](json.loads(file.read_text())) if file.exists() else "Not measured yet."
        return f"<!-- results: {match[1]} -->\n{body}\n<!-- end -->"

    return re.sub(r"<!-- results: (\w+) -->.*?<!-- end -->", made, (ROOT / page).read_text(), flags=re.DOTALL)


def recipes_table() -> str:
    """For docs/recipes.md."""
    rows = []
    for name, recipe in RECIPES.items():
        keys = ", ".join(f"`{key}: {as_yaml(value)}`" for key, value in recipe.keys.items())
        rows.append(f"| `{name}` | {recipe.meaning} | {keys or '-'} |")
    return "\n".join(["| recipe | what it is | what it sets |", "|---|---|---|", *rows])


def config_page() -> str:
    """docs/config.md."""
    tables = []
    for title, lines in field_lines().items():
        rows = "\n".join(f"| `{name}` | {default} | {meaning} |" for name, default, meaning in lines)
        tables.append(f"## {title}\n\n| key | default | meaning |\n|---|---|---|\n{rows}\n")
    return (
        "# Config\n\nThe keys of the files that `burnish train`, `sft` and `reward` read. A pipeline's file has them\n"
        "in sections ([feedback.md](feedback.md)). `burnish config` prints this list.\n"
        "(Made from the docstrings in `src/burnish/config/`.)\n\n" + "\n".join(tables)
    )


def metrics_page() -> str:
    """docs/metrics.md."""
    columns = "\n".join(f"| `{c.row_key}` | `{n}` | {c.meaning} | `{c.added_by}` |" for n, c in COLUMNS.items())
    rows = "\n".join(f"| `{n}` | {m.meaning} | {m.healthy} | {m.red_flag} |" for n, m in METRICS.items())
    return (
        "# Metrics\n\nEach line of a run's `metrics.jsonl` is one PPO step with these keys; `ppo_step` returns the\n"
        "same. Value warm-up steps have no policy metrics, and runs without a critic none of the value model.\n"
        "(Made from `src/burnish/ppo/meanings.py`.)\n\n"
        f"| key | meaning | healthy | red flag |\n|---|---|---|---|\n{rows}\n\n"
        "## Per token\n\nA line of `samples.jsonl` is one response: `step`, `prompt`, `response`, `score`, `tokens`,\n"
        "`reward_parts` where there are several, and one list for each of these keys. An SA pair\n"
        "(`results['sa_pairs'][0]`) has the same keys. The whole table has columns:\n"
        "`results['sa_pairs']['logprob']` is a [B, T] tensor.\n\n"
        f"| key | column | meaning | added by |\n|---|---|---|---|\n{columns}\n"
    )


def recipes_page() -> str:
    page = with_results("docs/recipes.md")
    return re.sub(
        r"<!-- recipes -->.*?<!-- end -->", f"<!-- recipes -->\n{recipes_table()}\n<!-- end -->", page, flags=re.DOTALL
    )


def models_page() -> str:
    """What the check says of a tiny model of each tested family, and what so much sharing is worth for one model."""
    sys.path.insert(0, str(ROOT / "tests"))
    from families import FAMILIES, family_model

    ways = json.loads((ROOT / "benchmarks" / "results" / "sharing.json").read_text())["summary"]["llama"]
    rows = []
    for family in sorted(FAMILIES):
        decoder = decoder_of(family_model(family))
        fast = "the fast path" if decoder.shares_trunk else decoder.sharing
        way = "fast path" if decoder.shares_trunk else "prompt" if decoder.shares_prompts else "nothing"
        scope = "response" if decoder.shares_prompts else "sequence"
        _, ratio = ways[f"{way}, {scope}"]
        rows.append([f"`{family}`", fast, "both" if decoder.shares_prompts else "`sequence`", f"{ratio:.2f}"])
    page = with_results("docs/models.md")
    made = table(["family", "what is shared", "`adapter_scope`", "a step beside the fast path"], rows)
    return re.sub(
        r"<!-- families -->.*?<!-- end -->", f"<!-- families -->\n{made}\n<!-- end -->", page, flags=re.DOTALL
    )


PAGES: dict[str, Callable[[], str]] = {
    "docs/recipes.md": recipes_page,
    "docs/models.md": models_page,
    "docs/config.md": config_page,
    "docs/metrics.md": metrics_page,
    "docs/performance.md": partial(with_results, "docs/performance.md"),
    "docs/design.md": partial(with_results, "docs/design.md"),
    "docs/results.md": partial(with_results, "docs/results.md"),
    "docs/token_by_token.md": partial(with_results, "docs/token_by_token.md"),
    "docs/prompt_once.md": partial(with_results, "docs/prompt_once.md"),
    "docs/export.md": partial(with_results, "docs/export.md"),
    "docs/scopes.md": partial(with_results, "docs/scopes.md"),
    "docs/scaling.md": partial(with_results, "docs/scaling.md"),
    "docs/reliability.md": partial(with_results, "docs/reliability.md"),
    "README.md": partial(with_results, "README.md"),
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (ROOT / name).write_text(page(), encoding="utf-8")
