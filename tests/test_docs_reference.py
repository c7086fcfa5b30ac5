"""The page of Python names says how each is used."""

import ast
import re
import sys
from functools import cached_property
from inspect import getattr_static
from pathlib import Path

import pytest

import burnish

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def reference():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import make_reference
    finally:
        sys.path.pop(0)
    return make_reference


@pytest.fixture(scope="module")
def described(reference):
    """What the page says of each name."""
    parts = re.split(r"^### `(\w+)`$", reference.python_page(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_attributes_are_written_as_they_are_read(described):
    """As the classes themselves have them: what is a property is not called."""
    attributes, methods = 0, 0
    for name in burnish.__all__:
        for code in re.findall(r"^```python\n(\w*\.\w+.*?)```$", described[name], re.MULTILINE | re.DOTALL):
            member = re.search(r"\.(\w+)", code)[1]
            is_attribute = isinstance(getattr_static(getattr(burnish, name), member), property | cached_property)
            assert re.match(rf"\.{member}: \S" if is_attribute else rf"\w*\.{member}\(", code), f"{name}{code}"
            attributes, methods = attributes + is_attribute, methods + (not is_attribute)
    assert attributes >= 25
    assert methods >= 60
    assert ".has_critic: bool" in described["PPOConfig"]
    assert "PPOTrainer.from_run(" in described["PPOTrainer"]  # of the class


def test_what_makes_an_instance_is_there(described):
    assert "Sampler(\n    temperature: float = 1.0,\n    top_k: int = 0,\n" in described["Sampler"]
    for name in ("PPOConfig", "TrainConfig", "SFTConfig", "RewardModelConfig"):
        assert "(../config.md)" in described[name]
        keys = set(getattr(burnish, name).model_fields)
        assert keys <= set(re.findall(r"`(\w+)`", described[name]))
        assert keys <= set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/config.md").read_text(), re.MULTILINE))


def test_code_on_the_page_is_python(described):
    for text in described.values():
        for code in re.findall(r"^```python\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL):
            line = re.sub(r"^\w*\.", "", code)  # whose it is
            if line.startswith("class "):
                line += ": ..."
            elif re.match(r"\w+\(", line):
                line = f"def {line}: ..."
            ast.parse(line)


def test_the_two_lists_of_what_is_public_are_one(reference, described):
    page = (ROOT / "docs" / "api.md").read_text()
    extensions = {own.name: own.module for own in reference.EXTENSIONS}
    said = re.findall(r"`(\w+)`\s+in\s+`burnish\.([\w.]+)`", page)
    assert extensions == dict(said)
    assert set(described) == {*burnish.__all__, *extensions}


@pytest.mark.parametrize(
    ("docstring", "shown"),
    [
        ("V(s) of every token.  -> [B, T], zero outside", "V(s) of every token.  -> `[B, T]`, zero outside"),
        ("They are in prompt_order.py.", "They are in `prompt_order.py`."),
        ("`a_b` and (x * y)", "`a_b` and (x `*` y)"),
    ],
)
def test_markdown_takes_nothing_for_its_own(reference, docstring, shown):
    assert reference._prose(docstring) == shown
