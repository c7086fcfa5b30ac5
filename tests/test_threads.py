"""Waiting threads spin briefly: set before torch is there to read it, and never against the user."""

import os
import subprocess
import sys

import pytest

SAY = "import sys, burnish, os; print('torch' in sys.modules, os.environ.get('GOMP_SPINCOUNT'))"


def said(**own):
    environment = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")} | own
    return subprocess.run([sys.executable, "-c", SAY], env=environment, capture_output=True, text=True).stdout.split()


def test_waiting_threads_spin_briefly_from_before_torch_is_imported():
    assert said() == ["False", "1000"]


@pytest.mark.parametrize(("own", "spin"), [({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")])
def test_what_the_user_says_of_waiting_threads_stays(own, spin):
    assert said(**own) == ["False", spin]


def test_the_command_line_says_it_before_it_imports_torch():
    code = "import burnish.cli, sys, os; print('torch' in sys.modules, os.environ['GOMP_SPINCOUNT'])"
    environment = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True).stdout
    assert out.split() == ["False", "1000"]
