"""Answers that can be checked: the reference in words, its value, and code by its tests."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from burnish import InputError, RewardComputer, TrainConfig
from burnish.data import Prompt
from burnish.errors import RewardFailedError
from burnish.rewards import code, confined
from burnish.rewards import math as math_reward
from burnish.rewards.code import CodePart, code_in, run_confined
from burnish.rewards.exact_match import ExactMatchPart
from burnish.rewards.isolated import IsolatedFunction
from burnish.rewards.math import MathPart
from burnish.rewards.part import Workshop
from burnish.stages.trusted import reward_deeds
from tiny import tiny_config


def asked(*references: str) -> list[Prompt]:
    return [Prompt("q", f"file:{n}", reference=reference) for n, reference in enumerate(references, 1)]


# --------------------------------------------------------------------------------------------------------- exact match


@pytest.mark.parametrize(
    ("keys", "reference", "response", "score"),
    [
        ({}, "New York", "  New\n York ", 1.0),
        ({}, "New York", "new york", 0.0),
        ({}, "New York", "It is New York", 0.0),
        ({"ignore_case": True}, "New York", "NEW YORK", 1.0),
        ({"ignore_punctuation": True}, "New York", "New York.", 1.0),
        ({}, "New York", "New York.", 0.0),
        ({"extract": "####(.*)"}, "42", "41 #### 40 and #### 42", 0.0),  # greedy: "40 and #### 42"
        ({"extract": r"####\s*(\S+)"}, "42", "41 #### 40 and #### 42", 1.0),  # the last one counts
        ({"extract": r"####\s*(\S+)"}, "42", "42", 0.0),  # nothing found
        ({"extract": r"(\d+)", "extract_reference": r"####\s*(\S+)"}, "6 times 7 #### 42", "so 42", 1.0),
    ],
)
def test_exact_match_by_hand(keys, reference, response, score):
    assert ExactMatchPart(**keys).make(Workshop())(asked(reference), [response]) == [score]


@pytest.mark.parametrize(
    ("keys", "message"),
    [({"extract": "("}, "not a regular expression"), ({"extract": r"\d+"}, "has no group; put what is the answer in")],
)
def test_a_pattern_must_find_an_answer(keys, message):
    with pytest.raises(InputError, match=message):
        tiny_config(reward=[{"kind": "exact_match", **keys}])


def test_every_prompt_needs_an_answer_to_match():
    part = ExactMatchPart(extract_reference="####(.*)")
    with pytest.raises(InputError, match="needs a reference answer, and file:1 has none"):
        part.check_prompts([Prompt("q", "file:1")])
    with pytest.raises(InputError, match="finds no answer in the reference of file:2: 'forty'"):
        part.check_prompts(asked("#### 40", "forty"))


# ---------------------------------------------------------------------------------------------------------------- math


def test_without_its_library_math_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(math_reward, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'burnish\[math\]'"):
        MathPart().check(Workshop())


@pytest.fixture(scope="module")
def equal():
    pytest.importorskip("math_verify")
    return MathPart().make(Workshop())


@pytest.mark.parametrize(
    ("reference", "response", "score"),
    [
        ("1/2", "That makes 0.5", 1.0),
        (r"\frac{1}{2}", r"so \boxed{\frac{2}{4}}", 1.0),
        ("x^2 + 2x + 1", "we get $(x+1)^2$", 1.0),
        ("x^2 + 2x + 1", "we get $(x-1)^2$", 0.0),
        ("first 6, then #### 42", "it is 42.", 1.0),
        ("42", "it is 41.", 0.0),
        ("42", "", 0.0),
        ("42", "I do not know", 0.0),
    ],
)
def test_equal_values_are_equal_however_they_are_written(equal, reference, response, score):
    assert equal(asked(reference), [response]) == [score]


def test_a_tower_of_powers_is_not_equal_and_not_waited_for(equal):
    started = time.monotonic()
    assert equal(asked("42", "7"), ["$9^{9^{9^{9}}}$", "7"]) == [0.0, 1.0]
    assert time.monotonic() - started < 50  # 3 seconds of a processor that others use too


def test_math_runs_in_a_process_of_its_own(equal):
    assert isinstance(equal, IsolatedFunction)
    assert equal._worker.pid != os.getpid()


def test_a_function_of_burnish_is_found_by_its_module(tmp_path):
    """What a config may name is still a file."""
    function = IsolatedFunction("burnish.rewards.rules:repetition", 20)
    assert function(["p"], ["a b a b a b"]) == [pytest.approx(-3 / 5)]
    function.stop()
    with pytest.raises(InputError, match="function"):
        tiny_config(reward=[{"kind": "python", "function": "burnish.rewards.rules:repetition"}])


# ---------------------------------------------------------------------------------------------------------------- code

LIMITS = {"seconds": 3, "memory_mb": 512, "processes": 16}
GOOD = "def add(a, b):\n    return a + b\n"
TESTS = "assert add(2, 3) == 5\nassert add(-1, 1) == 0"


def can_confine() -> bool:
    try:
        code._try_confinement()
    except InputError:
        return False
    return True


confines = pytest.mark.skipif(not can_confine(), reason="this kernel cannot confine a program")


@confines
@pytest.mark.parametrize(
    ("response", "score"),
    [
        (GOOD, 1.0),
        (f"Here it is:\n```python\n{GOOD}```\nEnjoy!", 1.0),
        (f"```python\n1/0\n```\nno, better:\n```\n{GOOD}", 1.0),  # the last block, which nobody closed
        ("def add(a, b):\n    return a - b", 0.0),
        ("def add(a, b:", 0.0),
        ("", 0.0),
        ("import sys; sys.exit(0)", 0.0),
        ("import os; os._exit(0)", 0.0),
        ("import sys; sys.exit(3)", 0.0),
        ("print('passed')", 0.0),
        ("raise SystemExit", 0.0),
        (GOOD + "print('a' * 100)", 1.0),  # it may say what it likes
        (GOOD + "import asyncio; asyncio.run(asyncio.sleep(0))", 1.0),
        (GOOD + "import os; open('mine', 'w').close(); os.chmod('mine', 0o600)", 1.0),
    ],
)
def test_code_passes_if_its_tests_do(response, score):
    assert CodePart(seconds=10).make(Workshop())(asked(TESTS), [response]) == [score]


HARMFUL = {
    "reads a file": ("open('/etc/passwd').read()", "PermissionError"),
    "looks at a home": ("import os; os.listdir(os.path.expanduser('~root'))", "Error"),
    "reads the tests' machine": ("import os; os.listdir('{here}')", "PermissionError"),
    "writes elsewhere": ("open('{here}/written', 'w')", "Read-only"),
    "deletes": ("import os; os.remove('{here}/precious')", "Read-only"),
    "cuts short": ("import os; os.truncate('{here}/precious', 0)", "Read-only"),
    "changes a mode": ("import os; os.chmod('{here}/precious', 0o777)", "Read-only"),
    "changes an owner": ("import os; os.chown('{here}/precious', 1000, 1000)", "Read-only"),
    "changes a time": ("import os; os.utime('{here}/precious', (1, 1))", "Read-only"),
    "adds an attribute": ("import os; os.setxattr('{here}/precious', 'user.mine', b'x')", "Read-only"),
    "asks a service here": ("import socket; socket.socket(socket.AF_UNIX).connect('{service}')", "not permitted"),
    "tells a service here": (
        "import socket; socket.socketpair(type=socket.SOCK_DGRAM)[0].sendto(b'x', '{service}')",
        "not permitted",
    ),
    "asks around the kernel's back": (
        "import ctypes, os; call = ctypes.CDLL(None, use_errno=True).syscall(425, 8, bytes(120))\n"
        "assert call >= 0, os.strerror(ctypes.get_errno())",
        "not permitted",
    ),
    "mounts": (
        "import ctypes, os; libc = ctypes.CDLL(None); libc.unshare(0x10020000)\n"
        "libc.syscall(442, -100, b'/', 0x8000, bytes([0] * 8 + [1] + [0] * 23), 32)\n"
        "os.chmod('{here}/precious', 0o777)",
        "Read-only",
    ),
    "calls home": ("import socket; socket.create_connection(('127.0.0.1', {port}), 2)", "unreachable"),
    "sends a packet": (
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))",
        "unreachable",
    ),
    "signals others": ("import os; os.kill({pid}, 9)", "ProcessLookupError"),
    "takes all memory": ("x = bytearray(2 << 30)", "MemoryError"),
    "fills the disk": ("open('big', 'wb').write(b'x' * (64 << 20))", ""),
    "never ends": ("while True: pass", ""),
    "sleeps": ("import time; time.sleep(60)", ""),
    "talks without end": ("import sys\nwhile True: sys.stderr.write('x' * 10000)", ""),
    "multiplies": (
        "import os, time\nfor n in range(200):\n    if os.fork() == 0:\n        time.sleep(1)\n        os._exit(0)",
        "BlockingIOError",
    ),
}


@contextmanager
def service_at(path: Path) -> Iterator[str]:
    """A socket that anybody may write to, as a session's bus and a container's engine have them."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        yield str(path)


@confines
@pytest.mark.parametrize("deed", HARMFUL)
def test_what_a_model_writes_can_do_no_harm(deed, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    before = precious.stat()
    with socket.socket() as listening, service_at(tmp_path.with_name(f"{tmp_path.name}-service")) as service:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        program, complaint = HARMFUL[deed]
        values = {"here": str(tmp_path), "service": service, "port": listening.getsockname()[1], "pid": os.getpid()}
        for name, value in values.items():
            program = program.replace(f"{{{name}}}", str(value))
        started = time.monotonic()
        outcome, said = run_confined(program, "", LIMITS)
    assert outcome == "failed"
    assert complaint in said
    assert len(said) <= code.LONGEST_COMPLAINT
    assert time.monotonic() - started < 15
    assert [p.name for p in tmp_path.iterdir()] == ["precious"]
    assert precious.read_text() == "mine"
    after = precious.stat()
    assert (after.st_mode, after.st_uid, after.st_mtime) == (before.st_mode, before.st_uid, before.st_mtime)


@confines
def test_it_sees_an_empty_folder_and_no_secrets(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "hunter2hunter2")
    program = (
        "import os\nassert os.listdir('.') == []\nopen('mine', 'w').write('x')\nassert 'MY_TOKEN' not in os.environ"
    )
    assert run_confined(program, "assert open('mine').read() == 'x'", LIMITS)[0] == "passed"
    assert run_confined("import os", "assert os.listdir('.') == []", LIMITS)[0] == "passed"  # nothing is left of it


@confines
def test_nothing_of_it_stays_behind_when_its_time_is_over():
    mark = f"burnish-left-behind-{os.getpid()}"
    program = (
        "import ctypes, os, sys\nctypes.CDLL(None).prctl(1, 0)\nif os.fork() == 0:\n    os.setsid()\n"  # on its own
        f"    os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(60)', '{mark}'])\n"
        "import time; time.sleep(60)"
    )
    assert run_confined(program, "", LIMITS)[0] == "failed"
    assert not [p for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or [])]


@confines
def test_nothing_of_it_stays_behind_when_the_trainer_is_killed(tmp_path):
    mark = f"burnish-orphan-{os.getpid()}"
    script = (
        "from burnish.rewards.code import run_confined\n"
        f"run_confined('import time; time.sleep(60) # {mark}', '', {LIMITS | {'seconds': 60}!r})"
    )
    trainer = subprocess.Popen([sys.executable, "-c", script])
    for _ in range(200):
        if len(psutil.Process(trainer.pid).children(recursive=True)) >= 3:
            break
        time.sleep(0.05)
    children = psutil.Process(trainer.pid).children(recursive=True)
    assert len(children) >= 3
    time.sleep(0.5)
    trainer.kill()
    trainer.wait()
    _, alive = psutil.wait_procs(children, 5)
    assert not alive


@confines
def test_responses_are_tried_at_once(monkeypatch):
    reward = CodePart(seconds=10, at_once=4).make(Workshop())
    most, now, lock = [0], [0], threading.Lock()
    run = code.run_confined

    def watched(*given):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        try:
            return run(*given)
        finally:
            with lock:
                now[0] -= 1

    monkeypatch.setattr(code, "run_confined", watched)
    bad = "def add(a, b):\n    return 0"
    assert reward(asked(*[TESTS] * 6), [GOOD, bad] * 3) == [1.0, 0.0] * 3
    assert 2 <= most[0] <= 4


def test_where_nothing_can_be_confined_it_is_refused(monkeypatch):
    code._try_confinement.cache_clear()
    monkeypatch.setattr(code.subprocess, "run", _cannot)
    with pytest.raises(InputError, match=r"cannot confine what it would run here, so it is refused: .*namespaces: no"):
        CodePart().check(Workshop())
    monkeypatch.setattr(code.sys, "platform", "darwin")
    with pytest.raises(InputError, match="Linux's means"):
        CodePart().check(Workshop())
    code._try_confinement.cache_clear()


def _cannot(command, pass_fds, **_):
    os.write(pass_fds[0], b"namespaces: no")
    return subprocess.CompletedProcess(command, 1)


@confines
def test_a_step_of_confinement_that_fails_runs_nothing(tmp_path, monkeypatch):
    """Each in turn, by a copy of the script that lacks it."""
    script = Path(confined.__file__).read_text()
    for there, broken in (
        ("new = CLONE_NEWUSER", "new = 1 | CLONE_NEWUSER"),
        ("NEEDED_LANDLOCK = 3", "NEEDED_LANDLOCK = 99"),
        ("MOUNT_ATTR_RDONLY = 442,", "MOUNT_ATTR_RDONLY = 9999,"),
        ("SECCOMP_FILTER, IO_URING_SETUP = 2", "SECCOMP_FILTER, IO_URING_SETUP = 99"),
        ("sys.byteorder != ", "sys.byteorder == "),
        ("(resource.RLIMIT_CORE, 0)", "(99, 0)"),
    ):
        assert there in script
        (tmp_path / "confined.py").write_text(script.replace(there, broken))
        monkeypatch.setattr(code, "CONFINED", tmp_path / "confined.py")
        with pytest.raises(RewardFailedError, match="could not be tried"):
            run_confined("x = 1", "", LIMITS)


def test_code_needs_tests_and_trust():
    with pytest.raises(InputError, match="code needs a reference answer, and file:1 has none"):
        CodePart().check_prompts([Prompt("q", "file:1")])
    config = TrainConfig(prompts="p.jsonl", reward=[{"kind": "code"}, {"kind": "exact_match"}, {"kind": "math"}])
    assert [deed[:36] for deed in reward_deeds(config)] == ["run the code that the model writes, "]


@confines
def test_code_is_a_part_like_any_other():
    parts = tiny_config(reward=[{"kind": "code"}]).reward_parts
    assert RewardComputer(parts[0].make(Workshop())).compute_rewards(asked(TESTS), [GOOD]) == [1.0]
    assert code_in("no code") == "no code"
