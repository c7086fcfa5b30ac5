"""What it costs and changes to go beyond one process, on this machine.

    python benchmarks/scaleout.py                                               # all parts
    python benchmarks/scaleout.py --parts rollouts --steps 6 --batch-size 16    # about 6 minutes on one core
    python benchmarks/scaleout.py --parts processes --steps 3 --batch-size 16   # about 15 minutes on two cores
    python benchmarks/scaleout.py --parts processes --small --processes 1 2     # to see that it works

Stopped, it goes on where it was.

`processes`: PPO steps of SmolLM2-135M (or, with `--small`, of a random model of a tenth of its size) by one, two and
four processes, each with a copy of the base, and by two with the base sharded, all on the same cores: seconds a step,
the share of them in which processes waited for each other or sent something, the largest peak of a process, and how far
losses are from those of one process. With `--served` also with responses from a vLLM server that all of them ask. The
memory that a sharded process may take is known from the unsharded ones: without its share of the base, their peak is
what adapters, rollout and activations need; to that comes 1/N of the base, and 15 %.

`rollouts`: the sentiment demo (SmolLM2-135M in float32, 20 tokens, no truncation) with responses that burnish decodes
itself, and with responses from a vLLM server that runs beside it on the same cores, so that the two take turns. Both
sides have the same prompts, seeds and updates, and both are measured on held-out prompts by burnish's own decoder. vLLM
is installed at the first start (3.4 GB).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # what the tests start a server with

from burnish import PPOTrainer
from burnish.base_setup.embedded import embedded_model_folder
from vllm_server import install, serving
from workload import (
    MeasuredRows,
    before_and_after,
    fingerprint,
    machine,
    ppo_task,
    prompts_of_length,
    random_model,
    write_results,
)

WHOLE_VOCABULARY = {"top_k": 0, "top_p": 1.0}


def learned(settings: dict[str, Any]) -> dict[str, Any]:
    """A run of the sentiment demo: seconds a step, and the reward on held-out prompts before and after."""
    config, prompts = ppo_task("sentiment", **WHOLE_VOCABULARY, **settings)
    trainer = PPOTrainer(config)
    before, after, history = before_and_after(trainer, prompts)
    steps = history[1:]  # the first one has the probe and cold caches
    tokens = mean(h["response_tokens"] for h in steps) * config.batch_size
    rollout = mean(h["seconds_generate_sequences"] for h in steps)
    return {
        "seconds": mean(h["seconds"] for h in steps),
        "rollout_seconds": rollout,
        "tokens_per_second": tokens / rollout,
        "sampler_gap": max((h["sampler_gap"] for h in history if "sampler_gap" in h), default=None),
        "weight_cut": max((h["weight_cut"] for h in history if "weight_cut" in h), default=None),
        "before": before["reward"][0],
        "after": after["reward"],
        "kl": after["kl"][0],
    }


def served(settings: dict[str, Any]) -> dict[str, Any]:
    """The same with responses from a server that is started for it."""
    log = Path(tempfile.mkdtemp()) / "vllm.txt"
    with serving(embedded_model_folder(), log) as server:
        rollout = {"engine": "vllm", "url": server.url, "model": server.model}
        return learned(settings | {"rollout": rollout})


def rollouts(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Local and served, a row for each seed."""
    install()  # before anything is timed
    rows, sides = MeasuredRows("scaleout"), {"local": learned, "served": served}
    job = {"steps": options.steps, "batch_size": options.batch_size, "mini_batch_size": options.batch_size // 2}
    measured = []
    for seed in range(options.seeds):
        for side, measure in sides.items():
            given = job | {"seed": seed}
            key = {"part": "rollouts", "side": side, "seed": seed, "job": fingerprint(given | WHOLE_VOCABULARY)}
            measured.append(rows.row(key, partial(measure, given)))
    shown = Table("responses", "seed", "a step", "rollout", "tokens/s", "gap", "reward", title="rollouts from a server")
    for r in measured:
        gap = "" if r["sampler_gap"] is None else f"{r['sampler_gap']:.1e}"
        reward = f"{r['before']:.2f} -> {r['after'][0]:.2f} ± {r['after'][1]:.2f}"
        seconds = (f"{r['seconds']:.1f} s", f"{r['rollout_seconds']:.1f} s", f"{r['tokens_per_second']:.0f}")
        shown.add_row(r["side"], str(r["seed"]), *seconds, gap, reward)
    Console(width=100).print(shown)
    return measured


# ----------------------------------------------------------------------------------------------- several processes

SMALL = {
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 1024,
    "vocab_size": 49152,
}


def worker(job: dict[str, Any]) -> None:
    """One of the processes: makes the steps, and the first of them prints what all have found."""
    from burnish import PPOConfig
    from burnish.decoder.base_identity import base_weights
    from burnish.decoder.memory import held_bytes, peak_bytes
    from burnish.processes import world
    from burnish.stages.measuring import ignore_stop_tokens

    libraries = held_bytes()
    with world.joined():
        settings = {"batch_size": job["batch_size"], "max_new_tokens": 32, "epochs": 2, "max_kl": None}
        settings |= {"target_kl_stop": None, "shard": job["shard"], "prompt_cache_mb": 0}
        if job["url"] is not None:
            rollout = {"engine": "vllm", "url": job["url"], "model": job["model"]}
            settings |= {"rollout": rollout, "adapter_scope": "sequence"} | WHOLE_VOCABULARY
        given = random_model("llama", **SMALL) if job["small"] else (None, None)
        config = PPOConfig(model_name="embedded/SmolLM2-135M-Instruct", **settings)
        trainer = PPOTrainer(config, lambda prompts, responses: [len(set(r)) / 32 for r in responses], *given)
        ignore_stop_tokens(trainer)
        prompts = prompts_of_length((64, 64), job["batch_size"])
        base = sum(weight.nbytes for _, weight in base_weights(trainer.base.model))  # the whole, sharded or not
        loading = peak_bytes()
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        steps = [trainer.ppo_step(prompts) for _ in range(job["steps"] + 1)]
        timed = steps[1:]  # the first one has cold caches
        peaks = world.gather([libraries, loading, peak_bytes()])
        seconds = mean(step["seconds"] for step in timed)
        waited = mean(step.get("seconds_waited", 0.0) for step in timed)
        found = {
            "seconds": seconds,
            "waited": waited / seconds,
            "base_bytes": base,
            "library_bytes": max(own[0] for own in peaks),
            "loading_bytes": max(own[1] for own in peaks),
            "peak_bytes": max(own[2] for own in peaks),
            "losses": [[step["policy_loss"], step["value_loss"]] for step in steps],
        }
        if world.is_first():
            print("FOUND", json.dumps(found), flush=True)


def by_processes(job: dict[str, Any], count: int) -> dict[str, Any]:
    """The job in `count` processes of torch's own launcher."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(count), "--rdzv-backend", "c10d"]
    command = [sys.executable, *launcher, "--rdzv-endpoint", "localhost:0", __file__, "--worker", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = [line.removeprefix("FOUND ") for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    if not told:
        raise SystemExit(done.stderr[-4000:])
    return json.loads(told[0])


def processes(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each number of processes, with a whole and with a sharded base, and for each way to get responses."""
    job = {"steps": options.steps, "batch_size": options.batch_size, "small": options.small}
    job |= {"url": None, "model": None}
    measured = _of_all_worlds(options, job, "local")
    if options.served:
        install()
        with serving(embedded_model_folder(), Path(tempfile.mkdtemp()) / "vllm.txt") as server:
            job |= {"url": server.url, "model": server.model}
            measured += _of_all_worlds(options, job, "served")
    _show(measured)
    return measured


def _of_all_worlds(options: argparse.Namespace, job: dict[str, Any], side: str) -> list[dict[str, Any]]:
    rows = MeasuredRows("scaleout_small" if options.small else "scaleout")
    measured: list[dict[str, Any]] = []
    worlds = [(n, shard) for n in options.processes for shard in sorted({False, n in options.sharded})]
    for count, shard in worlds:
        given = job | {"shard": shard}
        key = {"part": "processes", "side": side, "processes": count, "shard": shard}
        key |= {"job": fingerprint(given | {"url": side})}
        row = dict(rows.row(key, partial(by_processes, given, count)))
        one, whole = (next((r for r in measured if r["processes"] == n and not r["shard"]), row) for n in (1, count))
        mine, of_one = ([loss for step in r["losses"] for loss in step] for r in (row, one))
        row["loss_difference"] = max(abs(a - b) for a, b in zip(mine, of_one, strict=True))
        if shard:
            rest = whole["peak_bytes"] - whole["library_bytes"] - (1 - 1 / count) * row["base_bytes"]
            row["bound_bytes"] = round(row["library_bytes"] + 1.15 * rest)
        measured.append(row)
    return measured


def _show(measured: list[dict[str, Any]]) -> None:
    columns = ("processes", "base", "responses", "a step", "waiting", "peak", "may take", "loading", "losses off by")
    shown = Table(*columns, title="several processes")
    for r in measured:
        bound = f"{r['bound_bytes'] / 1e6:.0f} MB" if "bound_bytes" in r else ""
        numbers = (f"{r['seconds']:.1f} s", f"{r['waited']:.0%}", f"{r['peak_bytes'] / 1e6:.0f} MB", bound)
        base = "sharded" if r["shard"] else "whole"
        loading = f"{r['loading_bytes'] / 1e6:.0f} MB"
        shown.add_row(str(r["processes"]), base, r["side"], *numbers, loading, f"{r['loss_difference']:.1e}")
    Console(width=110).print(shown)


PARTS: dict[str, Callable[[argparse.Namespace], list[dict[str, Any]]]] = {
    "rollouts": rollouts,
    "processes": processes,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--sharded", type=int, nargs="+", default=[2], help="of these, those with a sharded base too")
    parser.add_argument("--small", action="store_true", help="a random model instead of SmolLM2; nothing is kept")
    parser.add_argument("--served", action="store_true", help="several processes with a vLLM server, too")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(json.loads(options.worker))
        return
    for part in options.parts:  # each has a file and a machine of its own: they may be measured on different days
        found = PARTS[part](options)
        if not options.small:
            write_results({"rollouts": "scaleout"}.get(part, part), {"machine": machine(), part: found})
    MeasuredRows("scaleout_small" if options.small else "scaleout").forget()


if __name__ == "__main__":
    main()
