"""Whose run folder this is.

A run's config names Python functions that are run, addresses that are sent texts and tokens, files that are read and
written. In a run of one's own that is what one asked for; a folder that was sent could ask for anything. So a run
folder is trusted only if this user made it on this machine, and it has to prove that.

The proof is an HMAC-SHA256 of the config's bytes, in a file beside it, under a key of 32 random bytes that never leaves
this user's state folder. Who sends a folder does not have the key and cannot make the proof, and one that was made for
another config does not fit. Nothing else is looked at: owner, dates and paths of a folder change when it is unpacked,
copied or moved, and a folder that its user copies or moves stays his. What a proven config names may change, as it may
for any config; what the folder holds beside it (weights, logs) is data, which runs nothing.

stages/trusted.py says what a config that proves nothing would do.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from burnish.errors import InputError
from burnish.runs.disk import inside, without_links, write_whole
from burnish.system.files import to_disk

KEY_BYTES = 32
PROOF = ".hmac"  # after the config's own name
LONGEST_PROOF = 1000


def state_dir() -> Path:
    """Where the key is kept: $BURNISH_STATE, or burnish/ in the user's state folder."""
    default = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "burnish"
    return Path(os.environ.get("BURNISH_STATE") or default)


def write_own(config: Path, text: str) -> None:
    """A run's config with the proof that it is this user's.

    Where a config is that proves nothing, the new one gets no proof either: trust is given to a command, not to a
    folder. The proof comes first, and is one of the new config and of the old: a kill between the two loses no trust.
    """
    before = config.read_bytes() if config.is_file() else None
    if before is None or is_own(config):
        try:
            key = _made_key()
        except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home
            warnings.warn(
                f"no key can be kept in the state folder ({error}), so {config.parent} will not be known as yours; set "
                "BURNISH_STATE to a folder that can be written to",
                stacklevel=2,
            )
        else:
            texts = [text.encode(), *([before] if before is not None else [])]
            proofs = dict.fromkeys(_proof(key, t) for t in texts)
            write_whole(config.with_name(config.name + PROOF), "".join(f"{proof}\n" for proof in proofs))
    write_whole(config, text)


def is_own(config: Path) -> bool:
    """Whether this user wrote it, as it stands, on this machine."""
    file = inside(config.parent, config.name + PROOF)
    try:
        key = _key_file().read_bytes()
        with open(file, "rb", opener=without_links) as proofs:
            given = proofs.read(LONGEST_PROOF).split()
        expected = _proof(key, config.read_bytes()).encode()
    except (OSError, RuntimeError):
        return False
    return len(key) == KEY_BYTES and any(hmac.compare_digest(proof, expected) for proof in given)


def unproven(config: Path, deeds: Iterable[str]) -> list[str]:
    """What a config asks for, told in a line each, if it is not this user's; nothing of one's own."""
    return [] if is_own(config) else [deed.replace("\n", " ") for deed in dict.fromkeys(deeds)]  # no line poses as two


def refusal(config: Path, deeds: Sequence[str], way_out: str) -> InputError:
    """Of a config that asks for these."""
    lines = "".join(f"\n  - {deed}" for deed in deeds)
    return InputError(
        f"{config.parent} was not made by you on this machine (or by an older version, or its {config.name} was "
        f"changed since), and this is what it asks for:{lines}\nIf that is what you want, {way_out}"
    )


def _proof(key: bytes, config: bytes) -> str:
    return hmac.new(key, config, hashlib.sha256).hexdigest()


def _key_file() -> Path:
    return state_dir() / "key"


def _made_key() -> bytes:
    """The key, made when it is first needed. Of two processes that make it at once, both get the same."""
    file = _key_file()
    if not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = file.with_name(f".key-{secrets.token_hex(8)}")
        handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(secrets.token_bytes(KEY_BYTES))
            to_disk(scratch)
            os.link(scratch, file)  # unlike a rename, it never replaces a key that is there
        except FileExistsError:
            pass  # another process was faster
        finally:
            scratch.unlink()
        to_disk(file.parent)
    key = file.read_bytes()
    if len(key) != KEY_BYTES:
        raise OSError(f"{file} is damaged; remove it")
    return key
