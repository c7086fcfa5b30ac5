"""No link in a run folder is followed, and what a resume makes again is kept as it was."""

import os
import shutil
import stat
import threading
from pathlib import Path

import pytest

from burnish import InputError
from burnish.checkpoints import Checkpoints, State
from burnish.models.adapter_files import adapter_folder
from burnish.runs import Run
from tiny import tiny_config, tiny_trainer
from torments import Zygote, log_of, make_workplace, state_hash


@pytest.fixture(scope="module")
def zygote(tmp_path_factory):
    started = Zygote(tmp_path_factory.mktemp("outputs"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_workplace(tmp_path_factory.mktemp("trust"))


@pytest.fixture(scope="module")
def whole(zygote, folder):
    """A finished run of 6 steps, with checkpoints of steps 4 and 6 and the best one, and its report."""
    outcome = zygote.run(folder, "train", "config.yaml", "run_name=whole", "keep_checkpoints=3")
    assert outcome.code == 0, outcome.text
    assert zygote.run(folder, "report", "runs/whole").code == 0
    return folder / "runs" / "whole"


@pytest.fixture
def run(whole, tmp_path):
    """The same, as its user copied it."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def files_of(run: Path) -> dict[Path, bytes]:
    return {p.relative_to(run): p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name != ".lock"}


# ------------------------------------------------------------------------------------------------------------- links


@pytest.mark.parametrize(
    ("linked", "command"),
    [
        (".writing-report.html", "report"),
        ("report.html", "report"),
        ("metrics.jsonl", "report"),
        ("config.yaml", "report"),
        (".lock", "eval"),
        ("verdict.json", "eval"),
        (".writing-verdict.json", "eval"),
        ("adapters/policy/adapter_model.safetensors", "eval"),
        ("adapters/policy", "generate"),
        ("adapters", "generate"),
        ("tensorboard", "resume"),
        (".writing-left", "resume"),
        ("samples.jsonl", "resume"),
        ("checkpoints/step-000004/tensors.safetensors", "resume"),
        ("checkpoints/step-000004", "verify"),
        ("checkpoints", "checkpoints"),
        ("start.json", "train"),
        (".lock", "train"),
    ],
)
def test_no_link_in_a_run_folder_is_followed(zygote, folder, run, tmp_path, linked, command):
    outside = tmp_path / "outside"
    place = run / linked
    if place.exists():
        place.rename(outside)
    else:
        outside.write_text("precious")
    place.symlink_to(outside)
    before = files_of(outside) if outside.is_dir() else outside.read_bytes()
    kept = files_of(run)
    arguments = {
        "generate": ("generate", run, "number 1:"),
        "resume": ("resume", run, "--from", "4"),
        "train": ("train", "config.yaml", f"run_dir={run.parent}", f"run_name={run.name}", "steps=8"),
    }.get(command, (command, run))
    outcome = zygote.run(folder, *arguments)
    assert outcome.code == 2, outcome.text
    assert f"{place} is a symbolic link to {outside}" in outcome.text
    assert (files_of(outside) if outside.is_dir() else outside.read_bytes()) == before
    assert files_of(run) == kept
    assert place.is_symlink()


def test_no_link_is_followed_where_nobody_looked_before(tmp_path):
    """Each reader and writer refuses for itself, or removes the link and not what it leads to."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    run = Run.new(tmp_path, "run").begin(tiny_config())

    (run.folder / ".writing-odd.json").symlink_to(victim)
    run.write("odd.json", {"a": 1})
    assert run.read("odd.json") == {"a": 1}
    for act in (
        lambda: run.append("odd.jsonl", {"a": 1}),
        lambda: run.write("odd.jsonl", {"a": 1}),
        lambda: run.read("odd.jsonl"),
        lambda: run.read_lines("odd.jsonl"),
    ):
        (run.folder / "odd.jsonl").unlink(missing_ok=True)
        (run.folder / "odd.jsonl").symlink_to(victim)
        with pytest.raises(InputError, match=f"odd.jsonl is a symbolic link to {victim}"):
            act()
    (run.folder / ".lock").symlink_to(victim)
    with pytest.raises(InputError, match="is a symbolic link"), Run(run.folder).lock():
        pass
    assert victim.read_text() == "precious"


def test_no_adapter_is_saved_or_loaded_through_a_link(tmp_path):
    trainer, elsewhere = tiny_trainer(), tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = Run.new(tmp_path, "run").begin(trainer.config)
    (run.folder / "adapters").mkdir()
    (run.folder / "adapters" / ".writing-policy").symlink_to(elsewhere)
    saved = run.save_adapter(trainer.policy)
    assert (saved / "adapter_model.safetensors").is_file()
    assert os.listdir(elsewhere) == []
    assert adapter_folder(run.folder, "policy") == saved
    (saved / "adapter_config.json").rename(tmp_path / "away.json")
    (saved / "adapter_config.json").symlink_to(tmp_path / "away.json")
    with pytest.raises(InputError, match=r"adapter_config.json is a symbolic link"):
        adapter_folder(run.folder, "policy")
    shutil.rmtree(run.folder / "adapters")
    (run.folder / "adapters").symlink_to(elsewhere)
    with pytest.raises(InputError, match="adapters is a symbolic link"):
        run.save_adapter(trainer.policy)
    with pytest.raises(InputError, match="adapters is a symbolic link"):
        adapter_folder(run.folder, "policy")


def test_no_checkpoint_is_saved_or_found_through_a_link(tmp_path):
    away = tmp_path / "away"
    Checkpoints(away).save(1, State())
    store = Checkpoints(tmp_path / "checkpoints")
    store.folder.symlink_to(away)
    for act in (store.latest, store.all, lambda: store.load(1), lambda: store.save(2, State())):
        with pytest.raises(InputError, match="checkpoints is a symbolic link"):
            act()
    store.folder.unlink()
    store.folder.mkdir()
    (store.folder / "step-000001").symlink_to(away / "step-000001")
    with pytest.raises(InputError, match="step-000001 is a symbolic link"):
        store.latest()
    (store.folder / "step-000001").unlink()
    shutil.copytree(away / "step-000001", store.folder / "step-000001")
    (store.folder / "step-000001" / "values.json").unlink()
    (store.folder / "step-000001" / "values.json").symlink_to(away / "step-000001" / "values.json")
    with pytest.raises(InputError, match=r"values.json is a symbolic link"):
        store.load(1)


def test_pipes_and_devices_have_no_place_in_a_run_folder(zygote, folder, run):
    (run / "probes.jsonl").unlink()
    os.mkfifo(run / "probes.jsonl")
    outcome = zygote.run(folder, "report", run)
    assert (outcome.code, "probes.jsonl is a device, pipe or socket" in outcome.text) == (2, True), outcome.text


def test_the_run_folder_itself_may_be_reached_by_a_link(zygote, folder, run, tmp_path):
    (tmp_path / "there").mkdir()
    run = run.rename(tmp_path / "there" / "mine")
    (tmp_path / "runs").symlink_to(tmp_path / "there")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(run)
    for named in (tmp_path / "runs" / "mine", tmp_path / "elsewhere" / "link"):
        for command in (("report", named), ("generate", named, "number 1:"), ("resume", named, "--from", "4")):
            outcome = zygote.run(folder, *command)
            assert outcome.code == 0, outcome.text


# ----------------------------------------------------------------------------------------------- where a report goes


def test_a_report_never_replaces_what_is_no_file(zygote, folder, whole, tmp_path):
    outcome = zygote.run(folder, "report", whole, "--output", tmp_path)
    assert (outcome.code, "is a folder; name a file" in outcome.text) == (2, True), outcome.text
    assert tmp_path.is_dir()

    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    outcome = zygote.run(folder, "report", whole, "--output", pipe)
    assert outcome.code == 0, outcome.text
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    reader.join()
    assert read[0] == (whole / "report.html").read_text()
    assert outcome.out == ""  # as /dev/stdout the page would end in a path


def test_a_report_never_replaces_a_device(zygote, folder, whole, tmp_path):
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        device.write_text("")
    except OSError:
        pytest.skip("a device can only be made by root")
    outcome = zygote.run(folder, "report", whole, "--output", device)
    assert outcome.code == 0, outcome.text
    assert stat.S_ISCHR(device.stat().st_mode)
    assert [p.name for p in tmp_path.iterdir()] == ["null"]


def test_a_link_named_as_output_stays_a_link(zygote, folder, whole, tmp_path):
    (tmp_path / "www").mkdir()
    target, link = tmp_path / "www" / "page.html", tmp_path / "page.html"
    link.symlink_to(target)
    for _ in range(2):  # a target that is not there yet, and one that is
        outcome = zygote.run(folder, "report", whole, "--output", link)
        assert outcome.code == 0, outcome.text
        assert link.is_symlink()
        assert target.read_text() == (whole / "report.html").read_text()
        target.write_text("old")


# ------------------------------------------------------------------------------------------------------ nothing lost


def test_checkpoints_on_a_disk_that_is_not_mounted_are_missed_before_anything_changes(zygote, folder, run, tmp_path):
    (run / "result.json").unlink()
    disk = (run / "checkpoints").rename(tmp_path / "disk")
    (run / "checkpoints").symlink_to(tmp_path / "not mounted" / "disk")
    before = files_of(run)
    train = ("train", "config.yaml", f"run_dir={run.parent}", f"run_name={run.name}", "keep_checkpoints=3")
    for command in (("resume", run), train):
        outcome = zygote.run(folder, *command)
        assert outcome.code == 2, outcome.text
        assert "checkpoints is a symbolic link to" in outcome.text
        assert "is its disk mounted?" in outcome.text
        assert files_of(run) == before
    (run / "checkpoints").unlink()
    disk.rename(run / "checkpoints")
    outcome = zygote.run(folder, "resume", run)
    assert (outcome.code, "Going on after step 6" in outcome.text) == (0, True), outcome.text


def test_a_run_that_lost_its_checkpoints_begins_anew_and_keeps_its_logs(zygote, folder, run, whole):
    for name in ("result.json", "verdict.json"):
        (run / name).unlink()
    shutil.rmtree(run / "checkpoints")
    logs = [(run / name).read_text() for name in ("metrics.jsonl", "samples.jsonl", "probes.jsonl")]
    outcome = zygote.run(folder, "resume", run)
    assert outcome.code == 0, outcome.text
    left = run / "left-000006"
    assert f"no checkpoint, so it begins anew. What is made again is kept as it was in {left}" in outcome.text
    assert [(left / name).read_text() for name in ("metrics.jsonl", "samples.jsonl", "probes.jsonl")] == logs
    assert not (left / "config.yaml").exists()  # lines, not a run
    assert log_of(run) == log_of(whole)


def test_what_a_finished_run_had_is_kept_when_it_goes_back(zygote, folder, run, whole):
    before = {name: content for name, content in files_of(run).items() if name.parts[0] != "checkpoints"}
    outcome = zygote.run(folder, "resume", run, "--from", "2", "learning_rate=0.01")
    assert outcome.code == 0, outcome.text
    left = run / "left-000006"
    assert f"kept as it was in {left}" in outcome.text
    assert files_of(left) == before  # result, verdict, logs, adapters, config: a run of its own
    assert (run / "result.json").read_bytes() != (left / "result.json").read_bytes()
    assert (run / "checkpoints" / "left-000006").is_dir()
    for command in (("report", left), ("generate", left, "number 1:"), ("eval", left), ("diff", left, run)):
        outcome = zygote.run(folder, *command)
        assert outcome.code == 0, outcome.text
    assert "copy/left-000006" in zygote.run(folder, "runs", run.parent).text

    result = (run / "result.json").read_bytes()
    assert zygote.run(folder, "resume", run, "steps=7").code == 0  # for more steps, too
    assert (run / "left-000006-2" / "result.json").read_bytes() == result


def test_lines_of_steps_that_a_kill_made_again_are_kept(zygote, folder, tmp_path):
    train = ("train", "config.yaml", f"run_dir={tmp_path}", "run_name=killed", "save_every=2")
    assert zygote.run(folder, *train, kill_at=14).code == -9
    run = tmp_path / "killed"
    steps = [row["step"] for row in log_of(run)[0]]
    assert steps == [1, 2, 3, 4, 5][: len(steps)]
    done = int(max((run / "checkpoints").glob("step-*")).name.removeprefix("step-"))
    lost = (run / "metrics.jsonl").read_text().splitlines()[done:]
    assert lost
    assert zygote.run(folder, *train).code == 0
    assert (run / f"left-{steps[-1]:06d}" / "metrics.jsonl").read_text().splitlines() == lost


def test_a_kill_at_any_moment_of_going_back_loses_nothing(zygote, folder, whole, tmp_path):
    """Result, verdict and every line are in the run or beside it, and it goes on to the same end."""

    def rows(run, name):
        return {line for f in (run, *run.glob("left-*")) for line in (f / name).read_text().splitlines()}

    logs = {name: rows(whole, name) for name in ("metrics.jsonl", "samples.jsonl", "probes.jsonl")}
    went_back = []
    for kill_at in (1, 11, *range(20, 36, 2)):  # about 20 of them while the copy is made, then logs, proof and config
        run = Path(shutil.copytree(whole, tmp_path / f"run-{kill_at}"))
        outcome = zygote.run(folder, "resume", run, "--from", "2", kill_at=kill_at, where="file")
        assert outcome.code == -9, outcome.text
        for name, lines in logs.items():
            assert rows(run, name) >= lines, kill_at
        for name in ("result.json", "verdict.json"):
            kept = [f / name for f in (run, *run.glob("left-*")) if (f / name).is_file()]
            assert (whole / name).read_bytes() in [file.read_bytes() for file in kept], kill_at
        if not (run / "result.json").exists():
            went_back.append(run)
    assert 3 <= len(went_back) <= 8
    for run in (went_back[0], went_back[-1]):
        outcome = zygote.run(folder, "resume", run)
        assert outcome.code == 0, outcome.text
        assert log_of(run) == log_of(whole)
        assert state_hash(run) == state_hash(whole)
        assert not (run / ".writing-left").exists()
