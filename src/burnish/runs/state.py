"""What training changes, as something that can be saved: parameters, optimizers, random numbers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from burnish.errors import NoCheckpointError
from burnish.runs.checkpoints import State


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
    if not own.keys() <= expected:  # fewer: some had no gradient yet, such as an expert that no token went to
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


def _tensor(state: State, name: str) -> Tensor:
    if name not in state.tensors:
        raise NoCheckpointError(f"the checkpoint lacks {name!r}; it is not one of this version of burnish")
    return state.tensors[name]
