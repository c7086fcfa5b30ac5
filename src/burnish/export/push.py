"""To the model hub: the files of an export, and nothing else of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.errors import InputError, ResourceError
from burnish.export.exported import files_of, read_facts
from burnish.runs.disk import refuse_links
from burnish.text import hider, without_secrets

WEIGHTS = (".safetensors", ".gguf")


@dataclass(frozen=True)
class Parcel:
    """What would be uploaded, and where to."""

    folder: Path
    name: str
    public: bool
    files: Sequence[Path]
    facts: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        sizes = {str(file.relative_to(self.folder)): file.stat().st_size for file in self.files}
        return {"name": self.name, "private": not self.public, "folder": str(self.folder), "files": sizes}


def parcel_of(folder: Path, name: str, public: bool) -> Parcel:
    """A finished export. One that its consumer has not tried is as good as it is said to be there, in its card."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise InputError(f"{name!r} is no name on the hub: {error}") from None
    if "/" not in name:
        raise InputError(f"{name!r} has no owner; give the name of a repository, such as you/{name}")
    if not folder.is_dir():
        raise InputError(f"there is no export {folder}; make it first: burnish export RUN --to adapter")
    refuse_links(folder)
    parcel = Parcel(folder, name, public, files_of(folder), read_facts(folder))
    _refuse_secrets(parcel)
    return parcel


def send(parcel: Parcel) -> str:
    """Creates the repository if it is not there, and commits all files at once; gives the commit's address.

    The token is the one that `hf auth login` stored, or that of HF_TOKEN.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

    api = HfApi(library_name="burnish")
    message = f"{parcel.facts['form']} exported by burnish"
    try:
        api.create_repo(parcel.name, private=not parcel.public, exist_ok=True, repo_type="model")
        _refuse_other_readers(parcel, api.model_info(parcel.name).private)
        done = api.upload_folder(repo_id=parcel.name, folder_path=parcel.folder, commit_message=message)
    except InputError:
        raise
    except LocalTokenNotFoundError:
        raise InputError("the hub wants to know who you are; set HF_TOKEN, or log in with: hf auth login") from None
    except OfflineModeIsEnabled:
        raise InputError("HF_HUB_OFFLINE is set, so nothing can be sent; unset it") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        login = "; set HF_TOKEN to a token that may write, or log in with: hf auth login"
        raise InputError(f"the hub refuses ({_first_line(error)}){login if status in (401, 403) else ''}") from None
    except Exception as error:  # of the HTTP library under the hub's, which has been replaced before
        raise ResourceError(f"the hub cannot be reached ({_first_line(error)}); nothing is lost, try again") from None
    return str(done.commit_url)


def _refuse_secrets(parcel: Parcel) -> None:
    """A system prompt may hold one, and is part of what a LoRA needs."""
    hide = hider()
    for file in parcel.files:
        if file.suffix not in WEIGHTS:
            text = file.read_text(encoding="utf-8", errors="replace")
            if hide(text) != text:
                raise InputError(
                    f"{file} holds the value of an environment variable that looks like a secret; nothing was sent. "
                    "Take it out of there (and of the run's settings), or unset the variable if it is none"
                )


def _refuse_other_readers(parcel: Parcel, private: bool | None) -> None:
    """A repository that was there already keeps the readers that it has."""
    if not parcel.public and private is False:
        raise InputError(f"{parcel.name} is there already, for everybody to see; give --public, or another name")
    if parcel.public and private is True:
        raise InputError(
            f"{parcel.name} is private on the hub, and --public does not change that; make it public there (in its "
            "settings), leave --public out, or give another name"
        )


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return without_secrets(lines[0] if lines else type(error).__name__)
