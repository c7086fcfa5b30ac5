"""A folder to run in, and a run that nothing disturbed."""

import pytest

from failures import log_of, make_workplace


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_workplace(tmp_path_factory.mktemp("reliability"))


@pytest.fixture(scope="module")
def whole(fork_server, folder):
    """The run that nothing happened to."""
    outcome = fork_server.run(folder, "train", "config.yaml", "run_name=whole")
    assert outcome.code == 0, outcome.text
    run = folder / "runs" / "whole"
    assert all(row["reward_std"] > 0.1 for row in log_of(run)[0])  # there is something to learn, and so to lose
    return run
