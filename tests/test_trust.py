"""No link in a run folder is followed, and a report replaces files only."""

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
from torments import Zygote, make_workplace


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
