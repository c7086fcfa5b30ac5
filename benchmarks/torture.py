"""The long variants of tests/reliability/: kills, damaged files, a soak, random data.

    python benchmarks/torture.py                 # about 25 minutes on two cores
    python benchmarks/torture.py --kills 20 --embedded-kills 1 --soak 60
    python benchmarks/torture.py --parts two     # a run made by two processes; about 10 minutes

Prints a table and, last, one JSON line; all of it but the number of kills must be 0.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # what the short variants use

from failures import ForkServer, corrupt, killed_and_resumed, log_of, make_workplace, soak, state_hash
from workload import machine, write_results

KILLS_PER_RUN = 5
EMBEDDED = [
    "train", "config.yaml", "model_name=embedded/SmolLM2-135M-Instruct", "chat_template=true", "reward=tldr",
    "prompts=bundled:tldr", "steps=4", "batch_size=4", "mini_batch_size=2", "max_new_tokens=12", "lora_layers=4",
    "save_every=1",
]  # fmt: skip


def kills(fork_server: ForkServer, folder: Path, count: int) -> dict[str, int]:
    """Runs that are killed again and again, half of the times inside a save; three seeds."""
    draw, hits, mismatches = random.Random(0), Counter[str](), 0
    wholes = {}
    for seed in range(3):
        name = f"whole-{seed}"
        outcome = fork_server.run(folder, "train", "config.yaml", f"seed={seed}", f"run_name={name}")
        assert outcome.code == 0, outcome.text
        wholes[seed] = folder / "runs" / name
    number = 0
    while (left := count - hits.total()) > 0:
        seed, name = number % 3, f"killed-{number}"
        number += 1
        where = draw.choices(("save", "file", "log", "torn"), (5, 2, 2, 1), k=min(KILLS_PER_RUN, left))
        points = [(draw.randrange(1, 8 if place == "file" else 14), place) for place in where]
        hits += killed_and_resumed(fork_server, folder, name, points, f"seed={seed}")
        run = folder / "runs" / name
        mismatches += state_hash(run) != state_hash(wholes[seed]) or log_of(run) != log_of(wholes[seed])
        shutil.rmtree(run)
    return {"kills": hits.total(), "inside_saves": hits["save"], "mismatches": mismatches}


def kills_of_two(fork_server: ForkServer, folder: Path, count: int, *settings: str) -> dict[str, int]:
    """Runs of two processes, either of which is killed at any moment: resumed by two, they end as if nothing had
    happened. The other one ends by itself, with a sentence.
    """
    draw, hits, mismatches, tracebacks, number = random.Random(4), 0, 0, 0, 0
    arguments, name = ("train", "config.yaml", *settings), "-".join(["two", *settings]).replace("=", "-")
    started = time.monotonic()
    outcomes = _two(fork_server, folder, *arguments, f"run_name={name}-whole")
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    whole, seconds = folder / "runs" / f"{name}-whole", time.monotonic() - started
    while hits < count:
        run = folder / "runs" / f"{name}-killed-{number}"
        number += 1
        for _ in range(min(KILLS_PER_RUN, count - hits)):
            kill = draw.randrange(2), draw.uniform(0.1, 0.9) * seconds
            outcomes = _two(fork_server, folder, *arguments, f"run_name={run.name}", kill=kill)
            tracebacks += sum("Traceback" in outcome.text for outcome in outcomes)
            if -signal.SIGKILL not in [outcome.code for outcome in outcomes]:
                seconds *= 0.6  # it was done before: the machine has become faster, or little was left to do
                break
            hits += 1
        outcomes = _two(fork_server, folder, *arguments, f"run_name={run.name}")
        assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
        mismatches += state_hash(run) != state_hash(whole) or log_of(run) != log_of(whole)
        shutil.rmtree(run)
    return {"kills": hits, "mismatches": mismatches, "tracebacks": tracebacks}


def _two(fork_server: ForkServer, folder: Path, *arguments: str, kill: tuple[int, float] | None = None) -> list[Any]:
    """How two processes of a command ended; `kill` is which of them dies, and after how many seconds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "BURNISH_PATIENCE": "2"}
    pids = [fork_server.start(folder, *arguments, environment=world | {"RANK": str(rank)}) for rank in range(2)]
    if kill is not None:
        which, seconds = kill
        time.sleep(seconds)
        os.kill(pids[which], signal.SIGKILL)  # if it has ended, it is still there to be waited for
    return [fork_server.wait(pid) for pid in pids]


def embedded_kills(folder: Path, count: int) -> dict[str, Any]:
    """The same on the embedded model, at random moments, in processes of their own; and what safety costs there: the
    share of a run's time that saving after every single step takes, and the seconds to find and restore a checkpoint.
    """
    draw = random.Random(1)

    def run(name: str, seconds: float | None = None) -> int:
        command = [sys.executable, "-m", "burnish", *EMBEDDED, f"run_name={name}"]
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    started = time.monotonic()
    assert run("embedded-whole") == 0
    whole_seconds = time.monotonic() - started
    hits, mismatches, number = 0, 0, 0
    while hits < count:
        name = f"embedded-killed-{number}"
        number += 1
        while hits < count and run(name, draw.uniform(0.3, 0.95) * whole_seconds) == -signal.SIGKILL:
            hits += 1
        assert run(name) == 0  # to its end, if it is not there yet
        mismatches += state_hash(folder / "runs" / name) != state_hash(folder / "runs" / "embedded-whole")
    whole = json.loads((folder / "runs" / "embedded-whole" / "result.json").read_text())
    killed = [json.loads(f.read_text()) for f in (folder / "runs").glob("embedded-killed-*/result.json")]
    return {
        "kills": hits,
        "mismatches": mismatches,
        "saving_share": round(whole["seconds_saving"] / whole["seconds"], 4),
        "seconds_restoring_at_most": max(result["seconds_restoring"] for result in killed),
    }


def corruptions(fork_server: ForkServer, folder: Path, count: int) -> dict[str, int]:
    """A finished run's checkpoint files damaged; `resume` must notice each time and end in the same state."""
    draw, silent, mismatches, tracebacks = random.Random(2), 0, 0, 0
    whole = folder / "runs" / "whole-0"
    for number in range(count):
        run = Path(shutil.copytree(whole, folder / "runs" / f"damaged-{number}"))
        (run / "result.json").unlink()
        victim = draw.choice(sorted(sorted(run.glob("checkpoints/step-*"))[-1].iterdir()))
        corrupt(victim, draw)
        outcome = fork_server.run(folder, "resume", str(run))
        silent += "is damaged (" not in outcome.text
        tracebacks += "Traceback" in outcome.err
        mismatches += outcome.code != 0 or state_hash(run) != state_hash(whole)
        shutil.rmtree(run)
    return {"corruptions": count, "silent_loads": silent, "mismatches": mismatches, "tracebacks": tracebacks}


def rivals(fork_server: ForkServer, folder: Path, count: int) -> dict[str, int]:
    """Two processes and one run folder: one works, the other is told who does, or that all is done."""
    mismatches = 0
    for number in range(count):
        name = f"both-{number}"
        pids = [fork_server.start(folder, "train", "config.yaml", f"run_name={name}", "steps=3") for _ in range(2)]
        outcomes = [fork_server.wait(pid) for pid in pids]
        told = [o for o in outcomes if (o.code == 3 and "in use by process" in o.text) or "is finished" in o.text]
        steps = [row["step"] for row in log_of(folder / "runs" / name)[0]]
        mismatches += len(told) != 1 or steps != [1, 2, 3]
        shutil.rmtree(folder / "runs" / name)
    return {"pairs": count, "mismatches": mismatches}


def soak_of(folder: Path, steps: int) -> dict[str, Any]:
    """Memory and file handles over many steps of the tiny model, saved after each."""
    growth, handles = soak(folder, steps)
    return {"steps": steps, "growth": round(growth, 4), "leaks": int(growth > 0.05 or len(set(handles)) > 1)}


def random_files(fork_server: ForkServer, folder: Path, count: int) -> dict[str, int]:
    """Data files of random damage: refused with exit code 2 and a sentence, or usable; never a traceback."""
    draw, tracebacks, other = random.Random(3), 0, 0
    pieces = [
        b'{"prompt": "a:"}',
        b'{"prompt": ',
        b"null",
        b'"text"',
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\r\n",
        b"\n",
        b"[]",
        b"{}",
        b"\x00",
        b'{"prompt": []}',
    ]
    for _ in range(count):
        content = b"".join(draw.choice(pieces) for _ in range(draw.randrange(0, 12)))
        (folder / "random.jsonl").write_bytes(content)
        outcome = fork_server.run(folder, "train", "config.yaml", "prompts=random.jsonl", "run_name=random", "steps=1")
        tracebacks += "Traceback" in outcome.err
        other += outcome.code not in (0, 2)
        shutil.rmtree(folder / "runs" / "random", ignore_errors=True)
    return {"files": count, "tracebacks": tracebacks, "other_exit_codes": other}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--embedded-kills", type=int, default=5)
    parser.add_argument("--kills-of-two", type=int, default=20)
    parser.add_argument("--kills-of-two-sharded", type=int, default=5)
    parser.add_argument("--corruptions", type=int, default=50)
    parser.add_argument("--soak", type=int, default=300)
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    for part in options.parts:  # each has a file and a machine of its own: they may be measured on different days
        with tempfile.TemporaryDirectory() as scratch:
            folder = make_workplace(Path(scratch) / "work")
            fork_server = ForkServer(Path(scratch) / "outputs")
            results = PARTS[part](fork_server, folder, options)
            fork_server.close()
        _tell({"one": "torture"}.get(part, f"torture_{part}"), results)


def one_process(fork_server: ForkServer, folder: Path, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    return {
        "kills, tiny model": kills(fork_server, folder, options.kills),
        "damaged checkpoints": corruptions(fork_server, folder, options.corruptions),
        "random data files": random_files(fork_server, folder, options.files),
        "two processes, one run folder": rivals(fork_server, folder, options.pairs),
        "kills, embedded model": embedded_kills(folder, options.embedded_kills),
        "soak": soak_of(folder, options.soak),
    }


def two_processes(fork_server: ForkServer, folder: Path, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    return {
        "kills, two processes": kills_of_two(fork_server, folder, options.kills_of_two),
        "kills, two processes, sharded": kills_of_two(fork_server, folder, options.kills_of_two_sharded, "shard=true"),
    }


PARTS = {"one": one_process, "two": two_processes}


def _tell(name: str, results: dict[str, dict[str, Any]]) -> None:
    table = Table("torment", "result")
    for torment, result in results.items():
        table.add_row(torment, ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in result.items()))
    Console(width=110).print(table)

    def total(key: str) -> int:
        return sum(result.get(key, 0) for result in results.values())

    summary = {
        key: total(key) for key in ("kills", "mismatches", "silent_loads", "tracebacks", "other_exit_codes", "leaks")
    }
    write_results(name, {"machine": machine(), "results": results, "summary": summary})
    if any(value for key, value in summary.items() if key != "kills"):
        raise SystemExit(json.dumps(summary))


if __name__ == "__main__":
    main()
