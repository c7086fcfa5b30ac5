"""The files that start a run on one machine, on several, by Slurm, Kubernetes or Ray."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

LAUNCH = Path(__file__).parents[2] / "configs" / "launch"
SCRIPTS = sorted(file for file in LAUNCH.iterdir() if file.suffix in (".sh", ".sbatch"))
MANIFESTS = sorted(LAUNCH.glob("*.yaml"))


def torchrun_of(words):
    """Its options, and the command of each process."""
    given = words[words.index("torchrun") + 1 :]
    module = given.index("-m")
    return given[:module], given[module:]


def commands_in(value):
    """Every command line in a manifest, as words."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "entrypoint":
                yield shlex.split(inner)
            elif key == "command":
                yield inner
            else:
                yield from commands_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from commands_in(inner)


def assert_starts_burnish(words):
    options, command = torchrun_of(words)
    assert command[:3] == ["-m", "burnish", "train"]
    text = " ".join(options)
    assert "--nproc-per-node" in text
    assert "--max-restarts" in text
    assert ("--standalone" in text) != ("--rdzv-endpoint" in text)  # among themselves, or by a meeting point


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_a_script_is_one_that_bash_can_read_and_starts_torchrun(file):
    subprocess.run(["bash", "-n", file], check=True)
    (line,) = [line for line in re.sub(r"\\\n", " ", file.read_text()).splitlines() if line.startswith("exec ")]
    assert_starts_burnish(line.split())


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.name)
def test_a_manifest_is_yaml_and_starts_torchrun(file):
    documents = list(yaml.safe_load_all(file.read_text()))
    for document in documents:
        assert {"apiVersion", "kind", "metadata", "spec"} <= document.keys()
    (words,) = [words for document in documents for words in commands_in(document)]
    assert_starts_burnish(words)


def test_each_file_says_how_it_is_used():
    for file in (*SCRIPTS, *MANIFESTS):
        assert re.search(rf"^#   .*configs/launch/{file.name}", file.read_text(), re.MULTILINE), file.name


def test_the_docs_name_every_launch_file():
    page = (LAUNCH.parents[1] / "docs" / "scaling.md").read_text()
    for file in (*SCRIPTS, *MANIFESTS):
        assert f"../configs/launch/{file.name}" in page, file.name
