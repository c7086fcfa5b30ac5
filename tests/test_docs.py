"""What the docs say is what the code does."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


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


def test_the_ways_to_start_run(capsys, monkeypatch, tmp_path):
    """Those of docs/models.md that are Python, in order, in one namespace, with a tiny model for the embedded one."""
    from tiny import tiny_model, tiny_tokenizer

    monkeypatch.chdir(tmp_path)
    tiny_model().save_pretrained("model")
    tiny_tokenizer().save_pretrained("model")
    monkeypatch.setattr("burnish.base_setup.embedded.embedded_model_folder", lambda: tmp_path / "model")
    namespace: dict[str, object] = {}
    page = (ROOT / "docs" / "models.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(snippets) == 3
    for snippet in snippets:
        exec(compile(snippet, "docs/models.md", "exec"), namespace)
    assert float(capsys.readouterr().out) < 1e-4
    assert (tmp_path / "runs" / "further" / "adapters" / "policy" / "adapter_model.safetensors").exists()


def test_no_page_has_a_gap_to_fill():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        assert not re.search(r"\b[A-Z]+_(TABLE|SENTENCE|TIME)\b", page.read_text()), page.name


def test_generated_pages_are_up_to_date():
    spec = importlib.util.spec_from_file_location("make_tables", ROOT / "docs" / "make_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, page in module.PAGES.items():
        assert (ROOT / name).read_text() == page(), f"run: python docs/make_tables.py ({name})"


def test_prose_is_narrow_enough_to_read_anywhere():
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        wide = [line for line in page.read_text().splitlines() if len(line) > 120 and not line.startswith("|")]
        assert not wide, f"{page.name}: {wide[0]}"


def test_links_and_files_named_in_the_docs_exist():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} -> {target}"


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
