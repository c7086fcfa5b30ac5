"""Rows out of files and datasets, each with the place it came from.

JSON, JSONL, CSV, TSV and Parquet files, plain text (one prompt per line), and datasets by name through the `datasets`
library.
Nothing here knows what the rows are for; `records.py` does.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.data.hub import ask_no_hub, hub_answers
from burnish.errors import InputError

FILES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".txt")
SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
MAX_CSV_FIELD = 2**31 - 1  # a post can be longer than the csv module's own limit


@dataclass(frozen=True)
class Row:
    """One row: its values by column, or what is wrong with it."""

    place: str
    """file:line, or dataset:row; counted from 1."""
    values: dict[str, Any] | None
    problem: str | None = None
    rest_is_lost: bool = False
    """Nothing behind it can be read either, so it cannot be skipped as if it were one row."""


def read_rows(source: str | Path, text_column: str = "prompt") -> Iterator[Row]:
    """Rows of a file or of a dataset. Lines of a `.txt` file become rows with `text_column` alone."""
    path = Path(source)
    if path.suffix == ".jsonl":
        yield from _jsonl(path)
    elif path.suffix == ".json":
        yield from _json(path)
    elif path.suffix in (".csv", ".tsv"):
        yield from _csv(path, tuple(SEPARATORS) if path.suffix == ".csv" else ("\t",))
    elif path.suffix == ".txt":
        yield from (Row(f"{path}:{n}", {text_column: line}) for n, line in enumerate(_lines(path), 1) if line.strip())
    elif path.suffix == ".parquet":
        yield from _dataset(str(path), _parquet(path))
    elif path.suffix and not path.is_dir() and (path.is_file() or re.fullmatch(r"\.(xlsx?|gz|zip)", path.suffix)):
        raise InputError(f"{path}: data comes as {', '.join(FILES)} or as a dataset's name, not as {path.suffix}")
    else:
        yield from _dataset(str(source), _named_dataset(str(source)))


# --------------------------------------------------------------------------------------------------------- files


def _lines(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").split("\n")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InputError(f"{path}:{line}: not UTF-8 text; save the file as UTF-8") from None


def _jsonl(path: Path) -> Iterator[Row]:
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue  # a blank line separates, it is not a row
        place = f"{path}:{number}"
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield Row(place, None, f"not valid JSON ({getattr(error, 'msg', 'nested too deeply')})")
            continue
        yield _object(place, values)


def _object(place: str, values: Any) -> Row:
    if isinstance(values, dict):
        return Row(place, values)
    return Row(place, None, f'a {type(values).__name__}, not an object such as {{"prompt": ...}}')


def _json(path: Path) -> Iterator[Row]:
    """A list of objects, one after the other, so that each has its line; or objects without a list around them, as
    JSONL has them.
    """
    text = "\n".join(_lines(path))
    decoder, between = json.JSONDecoder(), re.compile(r"[\s,]*")
    start = len(text) - len(text.lstrip())
    is_list = text.startswith("[", start)
    here = between.match(text, start + is_list).end()  # type: ignore[union-attr]
    line, counted = 1, 0  # each line feed is counted once
    while here < len(text) and not (is_list and text[here] == "]"):
        line, counted = line + text.count("\n", counted, here), here
        place = f"{path}:{line}"
        try:
            values, end = decoder.raw_decode(text, here)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", "nested too deeply")
            yield Row(place, None, f"not valid JSON from here on ({reason})", rest_is_lost=True)
            return
        here = between.match(text, end).end()  # type: ignore[union-attr]
        yield _object(place, values)
    if is_list and here == len(text):
        yield Row(f"{path}:{text.count(chr(10)) + 1}", None, "the list is not closed: its end is missing", True)
    elif is_list and text[here + 1 :].strip():
        more = len(text) - len(text[here + 1 :].lstrip())
        yield Row(f"{path}:{text.count(chr(10), 0, more) + 1}", None, "the list has ended, and there is more", True)


def _csv(path: Path, separators: tuple[str, ...]) -> Iterator[Row]:
    csv.field_size_limit(MAX_CSV_FIELD)
    text = "\n".join(_lines(path))
    separator = _separator(path, text, separators)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
    header: list[str] = []
    first = 1  # a row's first line: a quoted field may span several
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:  # where the next row begins is anyone's guess
            yield Row(f"{path}:{first}", None, f"not valid CSV from here on ({error})", rest_is_lost=True)
            return
        place, first = f"{path}:{first}", reader.line_num + 1
        if not cells:
            continue
        if not header:
            header = cells
            if len(set(header)) < len(header):
                raise InputError(f"{place}: a column's name is given twice in the header: {', '.join(header)}")
        elif len(cells) != len(header):
            yield Row(place, None, f"{len(cells)} fields, but the header has {len(header)}")
        else:
            yield Row(place, dict(zip(header, cells, strict=True)))


def _separator(path: Path, text: str, known: tuple[str, ...]) -> str:
    """What the header's columns are separated by. A comma where it could be several; a single column needs none."""
    header = next((line for line in text.split("\n") if line.strip()), "")
    widths = {own: len(next(csv.reader([header], delimiter=own), [])) for own in known}
    if widths[known[0]] > 1 or max(widths.values()) == 1:
        if max(widths.values()) == 1 and re.search(r"\w\s*[^\w\s'\"().-]\s*\w", header):
            names = " or ".join(SEPARATORS[own] for own in known)
            raise InputError(
                f"{path}: its header is one column, {header[:80]!r}; columns are separated by a {names} here"
            )
        return known[0]
    found = [own for own, width in widths.items() if width > 1]
    if len(found) > 1:
        names = " or ".join(SEPARATORS[own] for own in found)
        raise InputError(f"{path}: its columns may be separated by a {names}; separate them by commas")
    return found[0]


# ------------------------------------------------------------------------------------------------------ datasets


def _dataset(name: str, dataset: Any) -> Iterator[Row]:
    for number, values in enumerate(dataset, 1):
        yield Row(f"{name}:{number}", dict(values))


def _parquet(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"cannot read {path}: No such file")
    datasets = _datasets_library()
    try:
        return datasets.Dataset.from_parquet(str(path), cache_dir=None, keep_in_memory=True)
    except Exception as error:  # whatever pyarrow raises for a damaged file
        raise InputError(f"{path} cannot be read as Parquet: {_first_line(error)}") from None


def _named_dataset(name: str) -> Any:
    """`org/name`, `org/name[split]`, or a folder written by `save_to_disk`; the split is `train` unless given."""
    match = re.fullmatch(r"(?P<name>.+?)(?:\[(?P<split>[\w.]+)\])?", name)
    assert match is not None
    bare, split = match["name"], match["split"] or "train"
    if not Path(bare).is_dir() and (bare.startswith(("/", ".", "~")) or bare.count("/") != 1):
        raise InputError(
            f"there is no file {name}; data is a {', '.join(FILES)} file, a folder that `datasets` wrote, or the name "
            "of a dataset on the hub such as org/name or org/name[split]"
        )
    datasets = _datasets_library()
    if not Path(bare).is_dir() and not hub_answers():
        ask_no_hub()
        datasets.config.HF_HUB_OFFLINE = True
    try:
        if Path(bare).is_dir():
            found = datasets.load_from_disk(bare)
            return found[split] if isinstance(found, datasets.DatasetDict) else found
        return datasets.load_dataset(bare, split=split)
    except KeyError:
        raise InputError(f"the dataset {bare} has no split {split!r}; it has {', '.join(found)}") from None
    except Exception as error:  # network, hub and format errors of many kinds
        hub = "" if Path(bare).is_dir() or hub_answers() else " (no hub answers from here)"
        raise InputError(f"cannot load the dataset {name}{hub}: {_first_line(error)}") from None


def _datasets_library() -> Any:
    try:
        import datasets
    except ImportError:
        raise InputError(
            "Parquet files and named datasets need `datasets`; get it with: pip install datasets"
        ) from None
    return datasets


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
