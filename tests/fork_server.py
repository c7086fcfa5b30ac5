"""A process that has burnish imported and forks a child for every command: a hundred runs cost a hundred runs, not a
hundred imports. Orders come as lines of JSON; see failures.py.
"""

import json
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path

import torch

torch.set_num_threads(1)  # a fork must not inherit a thread pool

import burnish.runs.checkpoints as checkpoints  # noqa: E402
import burnish.runs.disk as disk  # noqa: E402
import burnish.stages.credit  # noqa: E402
import burnish.stages.pipeline_data  # noqa: E402
import burnish.stages.reward  # noqa: E402, F401
from burnish import cli  # noqa: E402
from burnish.runs.run import LOGS, Run  # noqa: E402

IN_A_SAVE = (
    (checkpoints, ("_save_tensors", "_fingerprint", "to_disk")),
    (disk, ("to_disk",)),
    (Path, ("rename",)),
    (shutil, ("rmtree",)),
)


def arm(kill_at: int | None, where: str, number: int) -> None:
    """A signal, SIGKILL mostly, at the n-th of certain calls: those inside a checkpoint's save, those that write any
    file of the run folder whole, those that log a line of a step, or (`torn`) in the middle of such a line.
    """
    if kill_at is None:
        return
    count, saving = 0, where != "save"

    def bomb(function):
        def counted(*args, **kwargs):
            nonlocal count
            count += saving
            if count == kill_at:
                os.kill(os.getpid(), number)
            return function(*args, **kwargs)

        return counted

    def watched(save):
        def wrapped(*args, **kwargs):
            nonlocal saving
            saving = True
            try:
                return save(*args, **kwargs)
            finally:
                saving = False

        return wrapped

    def torn(self, file, row):
        """Half a line reaches the disk."""
        nonlocal count
        count += file in LOGS
        line = json.dumps(row)
        with (self.folder / file).open("a") as out:
            out.write(line[: len(line) // 2] if count == kill_at else line + "\n")
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    append, deadly = Run.append, bomb(Run.append)
    if where == "torn":
        Run.append = torn
    elif where == "save":
        for place, names in IN_A_SAVE:
            for name in names:
                setattr(place, name, bomb(getattr(place, name)))
        checkpoints.Checkpoints.save = watched(checkpoints.Checkpoints.save)
    elif where == "file":
        disk.to_disk = bomb(disk.to_disk)
    else:
        Run.append = lambda self, file, row: (deadly if file in LOGS else append)(self, file, row)


def ruin_updates() -> None:
    """Updates so large as no learning rate that a config may have makes them."""
    plainly = torch.optim.AdamW.step

    def step(self, *arguments):
        for group in self.param_groups:
            group["lr"] = 1e30
        return plainly(self, *arguments)

    torch.optim.AdamW.step = step


def child(order: dict) -> None:
    os.chdir(order["folder"])
    for number, name in ((1, order["stdout"]), (2, order["stderr"])):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ |= order.get("environment", {})
    sys.argv = ["burnish", *order["arguments"]]
    code = 0
    try:
        if order.get("ruinous"):
            ruin_updates()
        arm(order.get("kill_at"), order.get("where", "log"), order.get("signal", signal.SIGKILL))
        cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            answer = {"code": os.waitstatus_to_exitcode(status)}
        else:
            pid = os.fork()
            if pid == 0:
                child(order)
            answer = {"pid": pid}
        print(json.dumps(answer), flush=True)


main()
