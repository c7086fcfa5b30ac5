"""Runs the notebooks and keeps what they print:  python docs/make_notebooks.py

The site shows them as pages; nothing but the standard library is needed for that.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

NOTEBOOKS = sorted((Path(__file__).parent / "notebooks").glob("*.ipynb"))
SECONDS = 600
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def execute(file: Path, folder: Path) -> Any:
    """The notebook with its outputs, every cell run in order in `folder`."""
    import nbclient
    import nbformat

    notebook = nbformat.read(file, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    return nbclient.NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=resources).execute()


def without_traces(notebook: Any) -> Any:
    """Nothing of this machine or moment, such as times, versions and warnings; and text alone, to be small."""
    notebook.metadata = {"language_info": {"name": "python"}}
    for number, cell in enumerate(notebook.cells):
        cell.metadata, cell.id = {}, f"cell-{number}"
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
            for output in cell.outputs:
                if "data" in output:
                    output.data = {"text/plain": output.data["text/plain"]}
                if "text" in output:
                    output.text = COLOUR.sub("", output.text)
    return notebook


def as_markdown(file: Path) -> str:
    """A notebook as a page."""
    parts = []
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        printed = "".join(map(_text_of, cell["outputs"])).rstrip()
        if printed:
            parts.append(f"```text\n{printed}\n```")
    where = f"(A notebook: `docs/notebooks/{file.name}`. Its outputs are those of the run that the page was made from.)"
    return "\n\n".join([*parts[:1], where, *parts[1:]]) + "\n"


def _text_of(output: dict[str, Any]) -> str:
    text = output.get("text") or output.get("data", {}).get("text/plain", "")
    return "".join(text).rstrip("\n") + "\n"


if __name__ == "__main__":
    import tempfile

    import nbformat

    for file in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(without_traces(execute(file, Path(folder))), file)
        print(file.name)
