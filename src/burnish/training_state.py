"""What training changes, as something that can be saved: parameters, optimizers, random numbers."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from burnish.checkpoints import State, versions
from burnish.errors import InputError, NoCheckpointError
from burnish.models.base_identity import adapter_of, fingerprint_of_weights
from burnish.models.shared_base import SharedBase


def parameters_state(parameters: Sequence[nn.Parameter]) -> State:
    return State({f"{i}": p.detach().clone() for i, p in enumerate(parameters)}, {"count": len(parameters)})


@torch.no_grad()
def restore_parameters(parameters: Sequence[nn.Parameter], state: State) -> None:
    if state.values["count"] != len(parameters):
        raise NoCheckpointError(f"the checkpoint holds {state.values['count']} weights, this run has {len(parameters)}")
    for i, parameter in enumerate(parameters):
        saved = _tensor(state, f"{i}")
        if saved.shape != parameter.shape:
            raise NoCheckpointError(
                f"weight {i} of the checkpoint has shape {tuple(saved.shape)}, not {tuple(parameter.shape)}"
            )
        parameter.copy_(saved)


def optimizer_state(optimizer: Optimizer) -> State:
    """The moments of every weight; settings such as the learning rate are the config's."""
    whole = optimizer.state_dict()
    tensors = {f"{i}/{key}": value.detach().clone() for i, own in whole["state"].items() for key, value in own.items()}
    return State(tensors)


def restore_optimizer(optimizer: Optimizer, state: State) -> None:
    own: dict[int, dict[str, Tensor]] = {}
    for name, tensor in state.tensors.items():
        number, _, key = name.partition("/")
        own.setdefault(int(number), {})[key] = tensor
    fresh = optimizer.state_dict()
    expected = {i for group in fresh["param_groups"] for i in group["params"]}
    if own and set(own) != expected:
        raise NoCheckpointError(f"the checkpoint's optimizer knows {len(own)} weights, this run has {len(expected)}")
    optimizer.load_state_dict({"state": own, "param_groups": fresh["param_groups"]})


def random_state(generators: Mapping[str, torch.Generator]) -> State:
    """Python's, numpy's and torch's own random numbers (a reward may use them), and the generators given."""
    kind_of_state, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    tensors = {name: generator.get_state() for name, generator in generators.items()}
    tensors["torch"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors |= {f"cuda{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    return State(
        tensors,
        {
            "python": [kind_of_state, list(internal), gauss],
            "numpy": [str(kind), [int(k) for k in np.asarray(keys)], int(position), int(has_gauss), float(cached)],
        },
    )


def restore_random(generators: Mapping[str, torch.Generator], state: State) -> None:
    kind_of_state, internal, gauss = state.values["python"]
    random.setstate((kind_of_state, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = state.values["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_tensor(state, "torch"))
    for i in range(torch.cuda.device_count()):
        if f"cuda{i}" in state.tensors:
            torch.cuda.set_rng_state(state.tensors[f"cuda{i}"], i)
    for name, generator in generators.items():
        generator.set_state(_tensor(state, name))


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
            digest.update(hashlib.sha256(file.read_bytes()).digest())
        except OSError as error:
            raise InputError(f"cannot read {file}: {error.strerror}") from None
    return digest.hexdigest()[:32]


# ------------------------------------------------------------------------------------------------ the same run?


def identity_of(
    base: SharedBase, learned: Iterable[str], texts: Iterable[str], heads: Iterable[nn.Module] = ()
) -> dict[str, Any]:
    """What a run must find again to be the same run: data, frozen weights; and what it needs to be so to the bit.

    `heads` are those of reward models, which belong to their adapters.
    """
    adapters = base.peft_model.peft_config.keys() - set(learned) if base.peft_model is not None else ()
    frozen = [(n, p) for n, p in base.model.named_parameters() if adapter_of(n) in adapters]
    frozen += [(f"head {i} {n}", p) for i, head in enumerate(heads) for n, p in head.named_parameters()]
    return {
        "data": fingerprint_of_texts(texts),
        "base model": base.identity.parts,
        "frozen adapters": fingerprint_of_weights(frozen),
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "device": str(base.device),
    }


def compare_identity(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Refuses other data and other weights; gives what else differs, a sentence each."""
    other = [name for name in ("data", "base model", "frozen adapters", "device") if saved.get(name) != now[name]]
    if other:
        then, here = saved.get("base model"), now["base model"]
        if isinstance(then, dict) and isinstance(here, dict):
            parts = [part for part in here if then.get(part) != here[part]]
            other = [f"base model ({', '.join(parts)})" if name == "base model" else name for name in other]
        raise InputError(
            f"this run cannot go on: {' and '.join(other)} changed since its checkpoint was saved. Bring back what it "
            f"was started with{_and_versions(saved, now)}, or start a new run"
        )
    told = [
        f"Differs, so the last bits may too: {n}: {saved.get(n)} then, {now[n]} now."
        for n in ("versions", "threads")
        if saved.get(n) != now[n]
    ]
    if "rewards" in saved and saved["rewards"] != now.get("rewards"):
        told.append("Changed: what the reward's files hold. Steps from here on are scored by what they hold now.")
    return told


def _and_versions(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Another version of a library may read the same files differently."""
    then, here = saved.get("versions"), now["versions"]
    return "" if then == here else f" (it ran with {then}, now there is {here})"


def _tensor(state: State, name: str) -> Tensor:
    if name not in state.tensors:
        raise NoCheckpointError(f"the checkpoint lacks {name!r}; it is not one of this version of burnish")
    return state.tensors[name]
