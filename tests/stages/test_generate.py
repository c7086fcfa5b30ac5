"""`burnish generate`: start, tuned model and checkpoints, of a run that has ended and of one that has not."""

import shutil

import pytest

from failures import CONFIG, make_workplace


@pytest.fixture(scope="module")
def place(tmp_path_factory, fork_server):
    """A finished run with its checkpoints, and the same as it was before it ended."""
    folder = make_workplace(tmp_path_factory.mktemp("generate"), CONFIG)
    ended = fork_server.run(folder, "train", "config.yaml", "run_name=done", "steps=4", "learning_rate=0.05")
    assert ended.code == 0, ended.text
    half = folder / "runs" / "half"
    shutil.copytree(folder / "runs" / "done", half)
    shutil.rmtree(half / "adapters")
    (half / "result.json").unlink()
    return folder


def answers(outcome):
    """By who is said to have given it; the table's frame is left out."""
    lines = [line.split("│" if "│" in line else "┃") for line in outcome.out.splitlines() if line[:1] in "│┃"]
    names, *rows = [[cell.strip() for cell in line[1:-1]] for line in lines]
    return {name: " ".join(row[n] for row in rows) for n, name in enumerate(names)}


def test_a_checkpoint_answers_beside_start_and_end(place, fork_server):
    first = answers(fork_server.run(place, "generate", "runs/done", "number 3:", "--step", 2))
    assert list(first) == ["base", "tuned", "step 2"]
    last = answers(fork_server.run(place, "generate", "runs/done", "number 3:", "--step", 4))
    assert last["step 4"] == last["tuned"] == first["tuned"]
    assert len({first["base"], first["step 2"], first["tuned"]}) == 3


def test_of_a_run_that_has_not_ended_a_checkpoint_answers(place, fork_server):
    whole = answers(fork_server.run(place, "generate", "runs/done", "number 3:"))
    half = answers(fork_server.run(place, "generate", "runs/half", "number 3:", "--step", 4))
    assert half == {"base": whole["base"], "step 4": whole["tuned"]}
    refused = fork_server.run(place, "generate", "runs/half", "number 3:")
    assert refused.code == 2
    assert "has not finished; name one of its checkpoints with --step: 2, 4" in refused.text


def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(place, fork_server):
    refused = fork_server.run(place, "generate", "runs/done", "number 3:", "--step", 3)
    assert refused.code == 2
    assert "nobody here is called 'step 3'; those who answer: base, tuned, step 2, step 4" in refused.text
