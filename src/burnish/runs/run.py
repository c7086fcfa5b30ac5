"""The run folder: config, metrics, samples, adapters; written during the run, readable by anything.

config.yaml      every setting of the run; config.yaml.hmac: the proof that it is this user's (trust.py)
metrics.jsonl    one line per PPO step (docs/metrics.md), or per update of the SFT and reward stages
samples.jsonl    a few responses per step, each token with its log-probabilities, KL, value, advantage ...
probes.jsonl     a few held-out prompts, answered before, during and after training
adapters/        policy/ and value/, or sft/, or reward/, in peft's own format
result.json      held-out measurement: written last, so a run that has it is complete
verdict.json     what `burnish eval` found; credit.json: what `burnish credit` found
choices.jsonl    what people said of answers; preferences.jsonl, scores.jsonl, demonstrations.jsonl: the same for the
                 next reward model and the next SFT (said.py)
report.html      what `burnish report` made of all that
answers.json     the most likely answers of base, start and tuned model to a few held-out prompts
judgements.jsonl what judges said of answers, by a hash of the question: nothing is asked twice
given.json       what was given from Python and no file has: a reward function, a model, ...
start.json       what the held-out prompts were answered before training
log.txt          what the terminal said, with times (log.py)
journal.jsonl    begun, resumed, warned, stopped, failed, finished, and when (journal.py); now.json: at work on what
checkpoints/     what a stopped or killed run resumes from (checkpoints.py)
left-000040/     what there was after step 40 and is made again: a finished run, or the lines of later steps (kept.py)
.lock            held by the process at work; the kernel lets go of it when the process ends, however it ends
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from burnish.config.files import ABOUT_THE_FOLDER, folder_inside, read_mapping
from burnish.config.model_config import ModelConfig
from burnish.drawing.notebook import html_of_run
from burnish.errors import InputError, LockedError, is_disk_full
from burnish.processes import world
from burnish.runs.disk import inside, json_lines, refuse_links, without_links, write_whole
from burnish.runs.trust import PROOF, write_own
from burnish.system import locks
from burnish.system.files import to_disk
from burnish.text import without_secrets

TRACES = (".lock", ".writing-", f"config.yaml{PROOF}")  # all that a run leaves which was killed before it began
LOGS = ("metrics.jsonl", "samples.jsonl", "probes.jsonl")
RESULTS = ("result.json", "verdict.json", "answers.json", "credit.json")
JUDGEMENTS = "judgements.jsonl"
GIVEN = "given.json"
FORMAT = 2  # of the folder: 1 had neither this number nor, at first, the stage; docs/run_folder.md
PIPELINE = ".pipeline.yaml"  # in the folder that holds the runs of a pipeline's stages: its whole config


class Run:
    """One run's folder. Where several processes make a run, the first alone writes to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def new(cls, root: str | Path, name: str | None = None) -> Run:
        """A run that does not exist yet: nothing is written until `begin`. An existing one is never written over."""
        folder = folder_inside(Path(root), name or time.strftime("%Y%m%d-%H%M%S"))
        if folder.exists() and not (folder.is_dir() and all(p.name.startswith(TRACES) for p in folder.iterdir())):
            raise InputError(f"{folder} exists already; choose another run_name, or move it away")
        return cls(folder)

    @classmethod
    def new_or_unfinished(cls, root: str | Path, name: str | None) -> Run:
        """A new run, or one that was begun under this name before and is resumed."""
        folder = folder_inside(Path(root), name) if name else None
        if folder is not None and (folder / "config.yaml").is_file():
            refuse_links(folder)
            return cls(folder)
        return cls.new(root, name)

    @property
    def was_begun(self) -> bool:
        return (self.folder / "config.yaml").is_file()

    def begin(self, config: ModelConfig) -> Run:
        """Makes the folder and puts the config into it."""
        if not world.is_first():
            return self
        own = {"format": FORMAT, "stage": config.stage}
        text = yaml.safe_dump(own | config.model_dump(mode="json"), sort_keys=False)
        with _writable(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_own(self.path("config.yaml"), text)
            to_disk(self.folder.parent)
        return self

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        folder = Path(folder)
        folder = folder if folder.name not in ("", "..") else folder.resolve()
        if folder.is_file():
            raise InputError(f"{folder} is a file; name the run's folder: {folder.parent}")
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder}; runs are kept in runs/, unless you chose another run_dir")
        refuse_links(folder)
        if (folder / PIPELINE).is_file():
            runs = [str(p.parent) for p in sorted(folder.glob("*/config.yaml"))]  # ppo is the first by name
            raise InputError(f"{folder} is a pipeline's folder; name one of its runs: {', '.join(runs) or 'none yet'}")
        if not (folder / "config.yaml").is_file():
            raise InputError(f"{folder} is not a run folder: it has no config.yaml")
        return cls(folder)

    def _repr_html_(self) -> str:
        """In a notebook: how it stands, its verdict once there is one, its curves."""
        from burnish.runs.journal import standing_of  # which knows runs

        verdict = self.read("verdict.json") if self.has("verdict.json") else None
        return html_of_run(self.name, standing_of(self), self.stage, self.read_lines("metrics.jsonl"), verdict)

    def path(self, file: str) -> Path:
        """Where a file of the run lies. Whatever is read or written is asked for here: links are refused."""
        return inside(self.folder, file)

    @property
    def _config_file(self) -> dict[str, Any]:
        file = self.path("config.yaml")
        try:
            values = read_mapping(file)
        except InputError as error:
            raise InputError(f"{file} is damaged: {error}") from None
        written_as = values.get("format", 1)  # older versions did not write it down
        if not isinstance(written_as, int) or not 1 <= written_as <= FORMAT:
            raise InputError(
                f"{self.folder} has format {written_as!r:.20}, and this version of burnish reads 1 to {FORMAT}; open "
                "it with the version that wrote it, or a newer one"
            )
        return values

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting of the run, as config.yaml has them."""
        return {key: value for key, value in self._config_file.items() if key not in ABOUT_THE_FOLDER}

    @property
    def stage(self) -> str:
        """Which stage it is: `sft`, `reward` or `ppo`."""
        values = self._config_file
        older = "sft" if "demonstrations" in values else "reward" if "preferences" in values else "ppo"
        stage = values.get("stage", older)  # older versions did not write it down
        if stage not in ("sft", "reward", "ppo"):
            raise InputError(f"{self.folder} is a run of a stage {stage!r}, which this version does not know")
        return stage

    def has(self, file: str) -> bool:
        return self.path(file).is_file()

    @property
    def is_complete(self) -> bool:
        return self.has("result.json")

    def read(self, file: str) -> dict[str, Any]:
        """A JSON file of the run."""
        path = self.path(file)
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"{self.folder} has no {file}; has its run finished?") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is damaged: {error}") from None

    def read_lines(self, file: str) -> list[dict[str, Any]]:
        """The rows of a JSONL file of the run; none if there is no file. A last line cut by a kill is left out."""
        return json_lines(self.path(file))

    @property
    def pipeline_folder(self) -> Path | None:
        """That of the pipeline of which this run is a stage."""
        return self.folder.parent if (self.folder.parent / PIPELINE).is_file() else None

    @property
    def name(self) -> str:
        """The folder's; a pipeline's stage is named after the pipeline."""
        folder = self.folder.resolve()
        return folder.parent.name if self.pipeline_folder else folder.name

    @property
    def policy_folder(self) -> Path:
        return self.folder / "adapters" / "policy"

    # ---------------------------------------------------------------------------------------- one process at a time

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held while the process works in the folder; a second one is told who was first."""
        with _writable(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            refuse_links(self.folder)
            handle = without_links(str(self.path(".lock")), os.O_RDWR | os.O_CREAT)
        try:
            try:
                locks.take(handle)
            except BlockingIOError:
                raise LockedError(f"{self.folder} is in use by {_holder(handle)}; wait for it, or stop it") from None
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()} since {time.strftime('%Y-%m-%d %H:%M:%S')}".encode())
            yield
        finally:
            os.close(handle)  # and the lock with it

    def forget_after(self, step: int) -> None:
        """Lines of steps that will be made again leave the logs, and so does a last line that a kill tore."""
        for name in LOGS:
            path = self.path(name)
            if path.is_file():
                self.write_lines(name, [row for row in self.read_lines(name) if step_of(row) <= step])

    def take_back_result(self) -> None:
        """The run is not complete any more: it is resumed."""
        for name in RESULTS:
            self.path(name).unlink(missing_ok=True)
        to_disk(self.folder)

    def logs_to_disk(self) -> None:
        """Every line written so far survives a power cut: a checkpoint must not know of steps that the logs forgot."""
        for name in LOGS:
            if self.path(name).is_file():
                to_disk(self.path(name))

    # ------------------------------------------------------------------------------------------------- writing

    def log(self, row: dict[str, Any]) -> None:
        """A line of metrics.jsonl."""
        self.append("metrics.jsonl", row)

    def log_probes(self, step: int, prompts: list[str], responses: list[str]) -> None:
        """The same prompts, answered again after some step."""
        for prompt, response in zip(prompts, responses, strict=True):
            self.append("probes.jsonl", {"step": step, "prompt": prompt, "response": response})

    def write(self, file: str, values: dict[str, Any]) -> None:
        """A JSON file of the run, there completely or not at all."""
        if world.is_first():
            write_whole(self.path(file), json.dumps(without_secrets(values), indent=2) + "\n")

    def write_lines(self, file: str, rows: list[dict[str, Any]]) -> None:
        """A JSONL file of the run, in place of what it was."""
        write_whole(self.path(file), lines_of(rows))

    def append(self, file: str, row: dict[str, Any]) -> None:
        """A line of a JSONL file of the run."""
        if not world.is_first():
            return
        with open(self.path(file), "a", encoding="utf-8", newline="\n", opener=without_links) as out:
            out.write(json.dumps(without_secrets(row)) + "\n")


def step_of(row: dict[str, Any]) -> int:
    """Which step a line of the logs is of; SFT and reward stages call it an update."""
    return row.get("step", row.get("update", 0))


def lines_of(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _holder(handle: int) -> str:
    """Who says to hold the lock. It has the lock a moment before it can say so: that moment is waited for."""
    for _ in range(20):
        time.sleep(0.1)
        os.lseek(handle, 0, os.SEEK_SET)
        if holder := os.read(handle, 200).decode(errors="replace").strip():
            return holder
    return "another process"


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise
        raise InputError(f"cannot write to the run folder {folder}: {error.strerror or error}") from None
