"""Is this the run that was begun before, and may it be resumed? All reasons why not are in `may_resume`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from burnish.config.keys import DATA, FIXED, PLACE, RUN, VERDICT, marked
from burnish.config.model_config import ModelConfig
from burnish.data import Split
from burnish.errors import InputError
from burnish.rewards.parts import KINDS
from burnish.runs.run import Run

# Parts of a run's identity: without these it is another run; with other ones of those, its last bits may differ.
MUST_BE_SAME = ("data", "base model", "frozen adapters", "device")
ONE_PROCESS = {"processes": 1}  # older checkpoints do not say so
TOLD = ("versions", "threads", "processes")


@dataclass(frozen=True)
class Then:
    """What a run was made with, as far as its folder or one of its checkpoints knows."""

    settings: Mapping[str, Any]
    identity: Mapping[str, Any] = field(default_factory=dict)
    is_complete: bool = False


@dataclass(frozen=True)
class Changes:
    """What has changed and may change, a sentence each."""

    settings: list[str]
    identity: list[str]
    nothing_to_do: bool = False
    """It is finished, and nothing has changed or is asked for again."""


@dataclass(frozen=True)
class Now:
    """What it would be resumed with. `identity` holds what is known at this point."""

    config: ModelConfig
    identity: Mapping[str, Any] = field(default_factory=dict)
    from_step: int | None = None

    def asks_for_more(self, then: Then) -> bool:
        """More steps than a finished run has made, or some of them again."""
        return self.from_step is not None or getattr(self.config, "steps", 0) > then.settings.get("steps", 0)


def may_resume(folder: Path, then: Then, now: Now) -> Changes:
    """The one decision: refuses what would make it another run, and gives the changes that are allowed."""
    changed = differences(then.settings, now.config)
    fixed = [changed[key] for key in marked(type(now.config), FIXED) if key in changed]
    if fixed:
        raise InputError(
            f"{folder} was started with other settings ({'; '.join(fixed[:3])}), and these cannot change on the way; "
            "choose another run_name"
        )
    other = [name for name in MUST_BE_SAME if name in now.identity and then.identity.get(name) != now.identity[name]]
    if other and then.is_complete:
        raise InputError(f"{folder} is finished, with other {' and '.join(other)}; choose another run_name, or move it")
    if other:
        raise InputError(
            f"{folder} cannot be resumed: {' and '.join(_in_detail(other, then, now))} changed since its checkpoint "
            f"was saved. Bring back what it was started with{_and_versions(then, now)}, or start a new run"
        )
    known = [line for key, line in changed.items() if key in then.settings]  # what older versions did not offer is new
    if then.is_complete and known and not now.asks_for_more(then):
        raise InputError(
            f"{folder} is finished, with other settings ({'; '.join(known[:3])}); choose another "
            f"run_name, or resume from one of its checkpoints: burnish resume {folder} --from STEP ..."
        )
    told = [f"Changed: {line}" for line in changed.values()]
    nothing_to_do = then.is_complete and not known and not now.asks_for_more(then)
    return Changes(told, _told(then.identity, now.identity), nothing_to_do)


def changes_since(run: Run, config: ModelConfig, data: Split[Any], from_step: int | None) -> Changes:
    """`may_resume`, by what the run folder and the command say before a model is loaded. Only a finished run knows its
    data yet.
    """
    if not run.is_complete:
        return may_resume(run.folder, Then(run.settings), Now(config, from_step=from_step))
    fingerprint = fingerprint_of_texts(data.texts())
    made_with = run.read("result.json").get("data_fingerprint") or fingerprint  # older results do not say
    then = Then(run.settings, {"data": made_with}, is_complete=True)
    return may_resume(run.folder, then, Now(config, {"data": fingerprint}, from_step))


def differences(then: Mapping[str, Any], config: ModelConfig) -> dict[str, str]:
    """Settings that have changed, by key, as `key: then -> now`. Where the run and its data are is not a setting.

    A key that an older version did not know had its default. A folder that no longer exists has been moved; where the
    old one still exists, the new one is another.
    """
    kind, now = type(config), config.model_dump(mode="json")
    before = {k: f.get_default(call_default_factory=True) for k, f in kind.model_fields.items()} | dict(then)
    keys = before.keys() - set(marked(kind, PLACE, DATA, VERDICT))
    folders = marked(kind, RUN)
    changed = [k for k in before if k in keys and not _same(before[k], now.get(k), is_path=k in folders)]
    return {k: f"{k}: {before[k]!r} -> {now.get(k)!r}" for k in changed}


def _same(then: Any, now: Any, is_path: bool = False) -> bool:
    if is_path and isinstance(then, str) and isinstance(now, str):
        return then == now or not Path(then).exists()
    if isinstance(then, list) and isinstance(now, list):
        return len(then) == len(now) and all(_same(a, b, is_path) for a, b in zip(then, now, strict=True))
    if isinstance(then, dict) and isinstance(now, dict):
        kind = KINDS.get(str(then.get("kind")))  # a part of a reward
        paths = kind.model_keys if kind else ()
        return then.keys() == now.keys() and all(_same(then[k], now[k], k in paths) for k in then)
    return then == now


def _in_detail(other: list[str], then: Then, now: Now) -> list[str]:
    """Of the base model, which parts."""
    before, here = then.identity.get("base model"), now.identity.get("base model")
    if not (isinstance(before, dict) and isinstance(here, dict)):
        return other
    parts = ", ".join(part for part in here if before.get(part) != here[part])
    return [f"base model ({parts})" if name == "base model" else name for name in other]


def _and_versions(then: Then, now: Now) -> str:
    """Another version of a library may read the same files differently."""
    before, here = then.identity.get("versions"), now.identity.get("versions")
    return "" if before == here else f" (it ran with {before}, now there is {here})"


def _told(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    told = [
        f"Differs, so the last bits may too: {name}: {then.get(name)} then, {now[name]} now."
        for name in TOLD
        if name in now and then.get(name, ONE_PROCESS.get(name)) != now[name]
    ]
    if "rewards" in then and then["rewards"] != now.get("rewards"):
        told.append("Changed: what the reward's files hold. Steps from here on are scored by what they hold now.")
    return told


def fingerprint_of_texts(texts: Iterable[str]) -> str:
    """Which data it is: every text, in its order."""
    digest = hashlib.sha256()
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()[:32]


def fingerprint_of_files(files: Iterable[Path]) -> str:
    """Which files they are, by what is in them."""
    digest = hashlib.sha256()
    for file in files:
        try:
            known = file.stat()
            digest.update(_digest(file, known.st_mtime_ns, known.st_size))
        except OSError as error:
            raise InputError(f"cannot read {file}: {error.strerror}") from None
    return digest.hexdigest()[:32]


@cache
def _digest(file: Path, changed: int, size: int) -> bytes:
    """Of a file as it is now; weights may be large, and are asked about more than once."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").digest()
