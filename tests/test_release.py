"""What a release says of itself is the same everywhere."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import burnish

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_there_is_one_version():
    assert PROJECT["version"] == burnish.__version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == burnish.__version__
    newest = re.findall(r"^## (\d[\d.]*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert newest == burnish.__version__


def test_the_docs_name_the_wheel_of_this_version():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    wheels = [name for page in pages for name in re.findall(r"burnish-([\d.]+)-py3", page.read_text())]
    assert len(wheels) >= 3
    assert set(wheels) == {burnish.__version__}


def test_a_tag_names_the_version_that_it_is_on():
    try:
        command = ["git", "-C", str(ROOT), "tag", "--points-at", "HEAD"]
        tags = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no repository")
    assert [tag for tag in tags if tag.startswith("v")] in ([], [f"v{burnish.__version__}"])


def test_requirements_are_ranges_and_what_was_tested_lies_in_them():
    from packaging.requirements import Requirement

    tested = dict(
        line.lower().split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    extras = [own for name, extra in PROJECT["optional-dependencies"].items() if name != "dev" for own in extra]
    for text in (*PROJECT["dependencies"], *extras):
        requirement = Requirement(text)
        assert not [own for own in requirement.specifier if own.operator in ("==", "===")], text
        version = tested.get(requirement.name.lower()) or tested.get(requirement.name.lower().replace("-", "_"))
        assert version is None or requirement.specifier.contains(version), text


def test_every_extra_is_a_part_of_all_or_needs_an_account():
    known = PROJECT["optional-dependencies"]
    (whole,) = known["all"]
    taken = set(re.findall(r"\w+", whole.partition("[")[2]))
    assert set(known) - taken <= {"all", "dev", "docs", "wandb", "trackio"}
    assert taken <= set(known)


def test_every_public_name_is_on_its_page():
    page = (ROOT / "docs" / "api.md").read_text()
    assert set(burnish.__all__) <= set(re.findall(r"`(\w+)`", page))


def test_issue_templates_ask_for_the_environment():
    for file in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        template = yaml.safe_load(file.read_text())
        if "body" in template:
            asked = {own["id"]: own for own in template["body"]}
            assert "`burnish env`" in asked["env"]["attributes"]["label"]
            assert asked["env"]["validations"]["required"]


def test_every_file_of_a_run_folder_is_on_its_page():
    from burnish.runs import run

    page = (ROOT / "docs" / "run_folder.md").read_text()
    for file in re.findall(r"\b(\w+\.(?:jsonl?|yaml|txt|html))\b", run.__doc__):
        assert f"`{file}`" in page
    assert f"Format **{run.FORMAT}**" in page
