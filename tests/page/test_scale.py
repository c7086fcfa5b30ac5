"""Two hundred runs of five thousand steps: the first view at once, memory bounded, and only what is new is read."""

import json
import math
import os
import random
import time

import pytest

from burnish.config import TrainConfig
from burnish.errors import InputError
from burnish.page import one_run, overview, rollouts
from burnish.page.growing import Metrics, last_rows, spread_points
from burnish.page.library import KEPT_FILES, SPARK_POINTS, Library
from burnish.page.view import Asked
from burnish.ppo.meanings import METRICS
from burnish.runs.run import Run

STEPS, RUNS = 5000, 200


def row(step):
    draw = random.Random(step)
    numbers = {
        name: round(draw.gauss(0.3, 0.1), 12) for name in METRICS if name not in ("reward_parts", "reward_costs")
    }
    return (
        {"step": step, "reward": math.sin(step / 700)} | numbers | {"step": step, "reward_parts": {"a": 0.1, "b": 0.2}}
    )


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """The files are hard links to one: the same work to read, and little disk."""
    root = tmp_path_factory.mktemp("many")
    first = Run.new(root, "run-000").begin(TrainConfig(prompts="p.txt", steps=2 * STEPS))
    first.path("metrics.jsonl").write_text("".join(json.dumps(row(step + 1)) + "\n" for step in range(STEPS)))
    for number in range(1, RUNS):
        folder = root / f"run-{number:03}"
        folder.mkdir()
        for name in ("config.yaml", "metrics.jsonl"):
            os.link(first.folder / name, folder / name)
    return root


def asked(library, query=None, **path):
    return Asked(library, path, query or {})


def at_once(look):
    """What it gives, within a second of computing; of two looks, the one that others disturbed less."""
    seconds = []
    for _ in range(2):
        started = time.process_time()
        shown = look()
        seconds.append(time.process_time() - started)
    assert min(seconds) < 1.0
    return shown


def test_the_list_of_runs_is_there_within_a_second(many):
    shown = at_once(lambda: overview.data(asked(Library(many))))
    assert (shown["total"], shown["runs"][0]["step"], shown["runs"][0]["steps"]) == (RUNS, STEPS, 2 * STEPS)
    points = shown["runs"][0]["points"]
    assert len(points) == SPARK_POINTS + 1
    assert points[-1] == (STEPS, shown["runs"][0]["last"])


def test_a_long_run_is_there_within_a_second_and_takes_little_memory(many):
    shown = at_once(lambda: one_run.data(asked(Library(many), run="run-000")))
    assert all(len(line["points"]) <= 620 for chart in shown["charts"] for line in chart["lines"])
    assert sum(8 * len(column) for column in Library(many).metrics("run-000").columns.values()) < 3e6


def test_ten_thousand_responses_are_there_within_a_second(tmp_path):
    run = Run.new(tmp_path, "run").begin(TrainConfig(prompts="p.txt"))
    numbers = ", ".join("0.12345678901234" for _ in range(16))
    tail = '"tokens": ["a"], ' + ", ".join(f'"column{n}": [{numbers}]' for n in range(10)) + "}\n"
    with run.path("samples.jsonl").open("w") as out:
        for n in range(2 * STEPS):
            heading = {
                "step": n // 2 + 1,
                "prompt": f"prompt {n // 2 % 500}",
                "response": f"word {n} " * 20,
                "score": n / 9,
            }
            out.write(json.dumps(heading)[:-1] + ", " + tail)
    library = Library(tmp_path)
    shown = at_once(lambda: rollouts.data(asked(Library(tmp_path), run="run")))
    assert (shown["kept"], shown["groups_found"], len(shown["groups"])) == (2 * STEPS, STEPS, 20)
    assert at_once(lambda: rollouts.data(asked(library, {"text": ["word 9998"]}, run="run")))["found"] == 1


def test_logs_of_the_runs_looked_at_last_are_kept(tmp_path):
    for number in range(KEPT_FILES + 5):
        Run.new(tmp_path, f"run-{number}").begin(TrainConfig(prompts="p.txt")).log({"step": 1, "reward": 0.5})
    library = Library(tmp_path)
    first = library.metrics("run-0")
    for name in library.runs():
        library.metrics(name)
        assert library.metrics("run-0") is first  # used all the time
    assert len(library._kept) == KEPT_FILES


def test_only_new_lines_are_parsed_and_a_torn_one_waits(tmp_path, monkeypatch):
    run = Run.new(tmp_path, "run").begin(TrainConfig(prompts="p.txt"))
    for step in (1, 2, 3):
        run.log(row(step))
    metrics = Metrics(run)
    metrics.update()
    parsed = []
    monkeypatch.setattr(
        "burnish.page.growing.json.loads", lambda text: parsed.append(text) or json.JSONDecoder().decode(text.decode())
    )
    metrics.update()
    assert parsed == []
    with run.path("metrics.jsonl").open("a") as out:
        out.write('{"step": 4, "rew')
    metrics.update()
    assert parsed == []
    with run.path("metrics.jsonl").open("a") as out:
        out.write('ard": 7.0, "new": 1.5}\n')
    metrics.update()
    assert len(parsed) == 1
    assert metrics.series("reward")[-1] == (4.0, 7.0)
    assert metrics.series("new") == [(4.0, 1.5)]
    assert len({len(column) for column in metrics.columns.values()}) == 1


def test_a_file_that_was_cut_is_read_again(tmp_path):
    run = Run.new(tmp_path, "run").begin(TrainConfig(prompts="p.txt"))
    for step in range(1, 6):
        run.log({"step": step, "reward": float(step)})
    metrics = Metrics(run)
    metrics.update()
    run.forget_after(2)  # as a resumed run does
    metrics.update()
    assert metrics.series("reward") == [(1.0, 1.0), (2.0, 2.0)]
    run.path("metrics.jsonl").unlink()
    metrics.update()
    assert metrics.series("reward") == []


def test_numbers_that_are_none_are_left_out_and_damage_is_told(tmp_path):
    run = Run.new(tmp_path, "run").begin(TrainConfig(prompts="p.txt"))
    run.log({"step": 1, "reward": math.nan, "kl": math.inf, "reward_parts": {"a": 1.0}})
    metrics = Metrics(run)
    metrics.update()
    assert metrics.series("reward") == metrics.series("kl") == []
    assert metrics.series("reward_parts/a") == [(1.0, 1.0)]
    run.path("metrics.jsonl").write_text("[1]\nnonsense\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl of run is damaged"):
        Metrics(run).update()
    assert spread_points(run.path("metrics.jsonl"), "reward", 10) == []
    assert last_rows(run.path("metrics.jsonl")) == []


def test_of_a_long_file_the_points_shown_are_spread_over_it(many):
    points = spread_points(many / "run-000" / "metrics.jsonl", "reward", 10)
    steps = [step for step, _ in points]
    assert len(steps) == 10
    assert steps[0] == 1
    assert all(abs(steps[k] - STEPS * k / 10) < 40 for k in range(10))
    assert all(value == row(step)["reward"] for step, value in points)
    assert [found["step"] for found in last_rows(many / "run-000" / "metrics.jsonl")][-2:] == [STEPS - 1, STEPS]


@pytest.mark.parametrize("count", [0, 1, 2, 47, 48, 49, 500])
def test_of_a_short_file_both_ends_are_shown(tmp_path, count):
    run = Run.new(tmp_path, "run").begin(TrainConfig(prompts="p.txt"))
    for step in range(1, count + 1):
        run.log({"step": step, "reward": -1e-7 * step, "reward_std": 9.0, "seconds": 1.0})
    points = Library(tmp_path).summary("run")["points"]
    assert [step for step, _ in points] == sorted({step for step, _ in points})
    assert (points[:1], points[-1:]) == ([(1, -1e-7)][:count], [(count, -1e-7 * count)][:count])
    assert len(points) <= 110
