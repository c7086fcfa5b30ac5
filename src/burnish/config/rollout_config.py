"""Where rollouts come from, if not from burnish's own decoder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from burnish.services.service import Address


class ServedRollout(BaseModel):
    """A vLLM server (or several) that generates the responses of every step; docs/scaling.md says how to start one."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    engine: Literal["vllm"]
    """What the server is: `vllm`, or anything that speaks its protocol (token ids in and out, adapters loaded while it
    runs)."""
    url: Address | list[Address]
    """Where it is, such as http://127.0.0.1:8000. Of several, each generates its share of a step, and one that fails is
    stood in for by the next."""
    model: str | None = Field(None, min_length=1)
    """The base's name there (--served-model-name). Unset: model_name, which is what vLLM calls it by default."""
    token_env: str | None = Field(None, min_length=1)
    """Name of the environment variable that holds the server's API key; the key itself has no place in a config."""
    adapter_dir: str | None = Field(None, min_length=1)
    """Folder in which each step's adapter is put for the server, which must see it under the same path. Unset: a
    temporary folder, for a server on this machine."""
    timeout: float = Field(600.0, gt=0, le=86_400)
    """Seconds for one response. A server that takes longer is asked again."""
    at_once: int = Field(64, ge=1, le=4096)
    """Responses that may be under way at a time, on all servers together. Usual: their --max-num-seqs, added up."""
    retries: int = Field(8, ge=0, le=1000)
    """How often a request is repeated that a server failed at: after 1, 2, 4 ... seconds, at most 60, or when it says.
    8 wait for three minutes."""
    correction: Literal["truncate", "mask"] = "truncate"
    """What is done about a token that the server gave another probability than training does, with w = the training
    pass's / the server's. Its loss is multiplied by `truncate`: min(w, largest_weight); `mask`: w, or 0 where w is
    above largest_weight or below 1 / largest_weight."""
    largest_weight: float = Field(2.0, gt=1, le=1000)
    """The bound on w. Usual 2 to truncate, 2-5 to mask; higher corrects more and is noisier."""
    max_gap: float | None = Field(None, gt=0, le=100)
    """The run stops if the log-probabilities of server and training differ by more than this on average, in nats a
    token. Unset: what training's number format explains, 0.01 in float32, 0.03 in float16, 0.2 in bfloat16. Raise it
    for a server that computes in a coarser format."""

    @field_validator("url")
    @classmethod
    def _names_a_server(cls, value: str | list[str]) -> str | list[str]:
        if value == []:
            raise ValueError("name at least one address")
        if isinstance(value, list) and len(set(value)) < len(value):
            raise ValueError("an address is given twice")
        return value

    @field_validator("adapter_dir")
    @classmethod
    def _is_the_same_everywhere(cls, value: str | None) -> str | None:
        if value is not None and not Path(value).is_absolute():
            raise ValueError("the server looks for it under the same path, so it must be absolute, such as /shared/run")
        return value

    def deeds(self) -> Iterator[str]:
        """What it makes this machine do, a line each."""
        token = f", with the key in your environment variable {self.token_env}" if self.token_env else ""
        for url in self.urls:
            yield f"send prompts to {url}, and have it load adapters{token}"
        if self.adapter_dir is not None:
            yield f"write adapters into {self.adapter_dir}"

    @property
    def urls(self) -> list[str]:
        """Each without the /v1 that the paths begin with."""
        urls = [self.url] if isinstance(self.url, str) else self.url
        return [url.rstrip("/").removesuffix("/v1") for url in urls]
