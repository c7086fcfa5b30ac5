"""What the docs say is what the code does."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.mark.real_model
def test_readme_python_runs(capsys, monkeypatch, tmp_path):
    """All Python snippets of README, in order, in one namespace, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    snippets = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(snippets) >= 3
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), namespace)
    assert "Policy loss:" in capsys.readouterr().out
    assert (tmp_path / "runs" / "brief" / "adapters" / "policy" / "adapter_model.safetensors").exists()


def test_no_page_has_a_gap_to_fill():
    for page in PAGES:
        assert not re.search(r"\b[A-Z]+_(TABLE|SENTENCE|TIME)\b", page.read_text()), page.name


def test_generated_pages_are_up_to_date():
    spec = importlib.util.spec_from_file_location("make_tables", ROOT / "docs" / "make_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, page in module.PAGES.items():
        assert (ROOT / name).read_text() == page(), f"run: python docs/make_tables.py ({name})"


def test_the_site_builds_without_a_warning_and_asks_no_network(tmp_path):
    """As `make docs` does. What a page loads comes with it."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    assert "WARNING" not in ended.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        loaded = re.findall(r"<(?:script|link|img|iframe)[^>]*?(?:src|href)=\"?(https?://[^\" >]+)", page.read_text())
        assert not loaded, f"{page.name} loads {loaded}"
    commands = (tmp_path / "site" / "reference" / "commands.html").read_text()
    assert "burnish reward-test" in commands
    assert "PPOTrainer" in (tmp_path / "site" / "reference" / "python.html").read_text()


def test_prose_is_narrow_enough_to_read_anywhere():
    for page in PAGES:
        wide = [line for line in page.read_text().splitlines() if len(line) > 120 and line[0] not in "|<"]
        assert not wide, f"{page.name}: {wide[0]}"


MADE_WITH_THE_SITE = ("reference/commands.md", "reference/python.md", "changelog.md", "contributing.md")


def anchors_of(page: Path) -> set[str]:
    """Those that GitHub gives to headings: lower case, letters, digits and hyphens."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_and_anchors_in_the_docs_exist():
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if target.startswith(("http", "mailto:")):
                continue
            name, _, anchor = target.partition("#")
            file = (page.parent / name).resolve() if name else page
            if name and str(file).startswith(str(ROOT / "docs")):
                within = file.relative_to(ROOT / "docs")
                if str(within) in MADE_WITH_THE_SITE or (ROOT / "docs" / within.with_suffix(".ipynb")).exists():
                    continue
            assert file.exists(), f"{page.name} -> {target}"
            assert not anchor or file.suffix != ".md" or anchor in anchors_of(file), f"{page.name} -> {target}"


def test_every_public_name_can_be_imported():
    import burnish

    for name in burnish.__all__:
        assert getattr(burnish, name) is not None
    with pytest.raises(AttributeError):
        burnish.nonsense  # noqa: B018


def test_nothing_unsafe_is_in_the_package():
    """No pickle, no torch.load, no shell: tensors live in safetensors, everything else in JSON and YAML."""
    for file in (ROOT / "src").rglob("*.py"):
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [a.name for a in node.names] + [getattr(node, "module", None) or ""]
                assert not {"pickle", "dill", "marshal"} & set(names), file
            if isinstance(node, ast.Attribute) and node.attr == "load" and isinstance(node.value, ast.Name):
                assert node.value.id != "torch", file
            if isinstance(node, ast.keyword):
                assert node.arg != "shell", file
                assert node.arg != "trust_remote_code" or node.value.value is False, file
