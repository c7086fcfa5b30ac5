"""What mkdocs calls while it builds the site: pages that are made at build time, and links that leave docs/."""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS))
sys.path.insert(0, str(ROOT / "src"))

from make_notebooks import NOTEBOOKS, as_markdown  # noqa: E402
from make_reference import commands_page, python_page  # noqa: E402

OF_THE_ROOT = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages of the repository's root, and where the site has them."""

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are made from the code, the notebooks and the root's own files."""
    made = {
        "reference/commands.md": commands_page(),
        "reference/python.md": python_page(),
        "changelog.md": from_the_root("CHANGELOG.md"),
        "contributing.md": from_the_root("CONTRIBUTING.md"),
        **{f"notebooks/{file.stem}.md": as_markdown(file) for file in NOTEBOOKS},
    }
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return for_the_site(markdown, page.file.src_uri)


def from_the_root(name: str) -> str:
    """Its links start at docs/, where its page is."""

    def moved(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        if target.startswith(("http", "#")):
            return found[0]
        target = target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"
        return f"{mark}[{label}]({target})"

    return LINK.sub(moved, (ROOT / name).read_text(encoding="utf-8"))


def for_the_site(markdown: str, page: str) -> str:
    """Without comments, which Markdown takes for blocks, and without links to files that the site does not have."""
    parts = FENCE.split(markdown)
    for number in range(0, len(parts), 2):  # between the blocks of code
        prose = re.sub(r"^<!--.*?-->\n?", "", parts[number], flags=re.MULTILINE | re.DOTALL)
        parts[number] = LINK.sub(lambda found: _within(found, page), prose)
    return "".join(parts)


def _within(found: re.Match[str], page: str) -> str:
    mark, label, target = found.groups()
    if target.startswith(("http", "#", "mailto:")):
        return found[0]
    path, _, anchor = target.partition("#")
    file = (DOCS / page).parent.joinpath(path).resolve()
    if file.is_relative_to(DOCS):
        return found[0]
    name = str(file.relative_to(ROOT))
    if name in OF_THE_ROOT:
        up = "../" * page.count("/")
        return f"{mark}[{label}]({up}{OF_THE_ROOT[name]}{'#' + anchor if anchor else ''})"
    return f'<span class="elsewhere" title="{html.escape(name)} in the repository">{label}</span>'
