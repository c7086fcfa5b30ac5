"""The examples of docs/rewards.md that a reader can type: each config with the command below it."""

import re
import shlex
from pathlib import Path

import pytest
from rich.console import Console
from test_classifier import save_classifier
from test_verifiers import can_confine

from burnish.config import load_train_config
from burnish.stages.reward_test import show_reward

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text()
EXAMPLES = re.findall(
    r"```yaml\n([^`]*)```\n\n(?:<!--[^\n]*-->\n)?```bash\nburnish reward-test config\.yaml (.*?)\n```", PAGE
)


def run(folder: Path, config: str, command: str) -> str:
    (folder / "config.yaml").write_text(config)
    prompt, response, *more = shlex.split(command)
    reference = more[1] if more[:1] == ["--reference"] else None
    console = Console(record=True, width=120, quiet=False, file=(folder / "out").open("w"))
    show_reward(console, load_train_config(folder / "config.yaml"), prompt, response, reference)
    return " ".join(console.export_text().split())


def example(kind: str) -> tuple[str, str]:
    return next((config, command) for config, command in EXAMPLES if f"kind: {kind}" in config)


def test_every_command_of_the_page_is_tried():
    assert len(EXAMPLES) == PAGE.count("burnish reward-test config.yaml") == 3


def test_the_classifier(tmp_path):
    model = save_classifier(tmp_path / "model", labels=["NEGATIVE", "POSITIVE"])
    config, command = example("classifier")
    told = run(tmp_path, config.replace("distilbert/distilbert-base-uncased-finetuned-sst-2-english", model), command)
    assert re.fullmatch(r"part score weight counts \S+ 0\.\d{3} 1 \+0\.\d{3} reward \+0\.\d{3}", told)


def test_what_can_be_checked(tmp_path):
    pytest.importorskip("math_verify")
    told = run(tmp_path, *example("exact_match"))
    assert "exact_match 1.000 1 +1.000" in told
    assert "math 1.000 0.5 +0.500" in told
    assert "reward +1.500" in told


@pytest.mark.skipif(not can_confine(), reason="this kernel cannot confine a program")
def test_code(tmp_path):
    config, command = example("code")
    assert "reward +1.000" in run(tmp_path, config, command)
    assert "reward +0.000" in run(tmp_path, config, command.replace("a + b", "a - b"))
