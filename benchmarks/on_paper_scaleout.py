"""On paper: PPO steps of a 7B and a 70B model on 8 and 64 GPUs, none of which this project has been measured on.

    python benchmarks/on_paper_scaleout.py      # at once: nothing is measured

Every figure is calculated, from shapes, from what burnish holds and sends (src/burnish/processes, decoder/sharded.py),
and from the data sheet of a GPU: products, memory and links at the sheet's rates. Real steps take longer; what carries
over is what fits, what is sent, and the ratio between the settings. Each GPU has a process, and as much work as the
others: twice the GPUs, twice the responses of a step. A layer of a sharded base is gathered before it computes, not
meanwhile, as burnish does it today.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from on_paper import Gpu, Shape, Work
from workload import write_results

MODELS = {
    "7B": Shape(),  # Qwen2.5-7B
    "70B": Shape(layers=80, hidden=8192, intermediate=28672, key_values=1024, vocabulary=128256),  # Llama-3-70B
}
H100 = Gpu("H100 SXM, 80 GB", flops=989e12, bytes_per_second=3.35e12)
# Bytes a second, one way. Within a node NVLink; between nodes what is gathered enters each node once, through all of
# its eight adapters of 400 Gb/s, and NVLink spreads it there.
LINKS = {8: 450e9, 64: 8 * 50e9}
WORK = Work(batch=32, prompt=300, response=256, epochs=4)  # of each GPU
PASS_TOKENS = {"7B": 4096, "70B": 1024}  # of a training pass: what fits (activation_mb)
HALF, FULL = 2, 4  # bytes of a number: the base's; adapters', gradients' and Adam's
CAPACITY = 80e9


@dataclass(frozen=True)
class Way:
    """How a step is made."""

    name: str
    sharded: bool
    scope: str
    upper: float
    """Share of the layers that have adapters."""
    served: bool = False


WAYS = (
    Way("whole base, adapters on all layers, sequence scope", False, "sequence", 1.0),
    Way("whole base, response scope (prompt once)", False, "response", 1.0),
    Way("whole base, response scope, top third (trunk once)", False, "response", 1 / 3),
    Way("sharded, response scope", True, "response", 1.0),
    Way("sharded, responses from a server", True, "sequence", 1.0, served=True),
    Way("sharded, responses from a server, top third", True, "sequence", 1 / 3, served=True),
)


def memory(shape: Shape, way: Way, gpus: int, pass_tokens: int) -> float:
    """Bytes on each GPU: base, adapters of two roles with gradients and Adam, keys and values, one training pass."""
    layer, ends = shape.layer_parameters * HALF, 2 * shape.vocabulary * shape.hidden * HALF
    base: float = shape.layers * layer + ends
    if way.sharded:
        base = base / gpus + 2 * max(layer, ends / 2)  # what is gathered, and its copy
    adapted = round(way.upper * shape.layers)
    adapters = 2 * 4 * FULL * adapted * shape.lora_parameters
    keys = 2 * shape.layers * shape.key_values * HALF * WORK.batch * (WORK.prompt + WORK.response)
    training = pass_tokens * adapted * shape.activation_numbers() * HALF
    return base + adapters + (0 if way.served else keys) + training


def seconds(shape: Shape, way: Way, wire: float) -> dict[str, float]:
    """Of the parts of a step, at least; `wire` is how long the link is busy."""
    adapted = round(way.upper * shape.layers)
    everything, upper = (2 * shape.layer_parameters * n * WORK.batch for n in (shape.layers, adapted))  # a token each
    computed = WORK.response + (WORK.prompt if way.scope == "sequence" else 0)
    read_once = WORK.prompt if way.scope == "response" or adapted < shape.layers else 0
    by_trunk = WORK.response if way.served and adapted < shape.layers else 0  # else decoding leaves it behind
    head = 2 * shape.hidden * shape.vocabulary * WORK.batch * WORK.response
    keys = 2 * shape.layers * shape.key_values * HALF
    streamed = (shape.parameters - shape.vocabulary * shape.hidden) * HALF
    per_token = streamed + WORK.batch * (WORK.prompt + WORK.response / 2) * keys
    return {
        "prompts and trunk": everything * (read_once + by_trunk) / H100.flops,
        "decoding": 0.0 if way.served else WORK.response * per_token / H100.bytes_per_second,
        "scoring": ((3 if way.served else 2) * upper * computed + head) / H100.flops,
        "training": 2 * WORK.epochs * (2 * upper * computed + head) / H100.flops,
        "sending": wire,
    }


def sent(shape: Shape, way: Way, gpus: int, pass_tokens: int) -> dict[str, float]:
    """Bytes that reach each GPU in a step: gradients of both adapters at each update (here one an epoch), and the
    others' parts of every layer (and embeddings, and head), for every pass through it.
    """
    adapted = round(way.upper * shape.layers)
    computed = WORK.response + (WORK.prompt if way.scope == "sequence" else 0)
    passes = -(-WORK.batch * computed // pass_tokens)  # micro-batches of an epoch and role
    gradients = 2 * WORK.epochs * 2 * (gpus - 1) / gpus * FULL * adapted * shape.lora_parameters
    walks = 0 if way.served else WORK.response + 1  # of all layers: each token, and the prompts
    walks_above = 3 + 2 * WORK.epochs * passes * 2  # scoring; both roles, forwards and backwards
    layers = (walks * shape.layers + walks_above * adapted) * shape.layer_parameters
    layers += (2 * walks + walks_above) * shape.vocabulary * shape.hidden  # embeddings and head
    return {"gradients": gradients, "layers": layers * HALF * (gpus - 1) / gpus if way.sharded else 0.0}


def row(model: str, gpus: int, way: Way) -> dict[str, Any]:
    shape, tokens = MODELS[model], PASS_TOKENS[model]
    held, wire = memory(shape, way, gpus, tokens), sent(shape, way, gpus, tokens)
    parts = seconds(shape, way, sum(wire.values()) / LINKS[gpus])
    step = sum(parts.values())
    return {
        "model": model,
        "gpus": gpus,
        "way": way.name,
        "gigabytes": held / 1e9,
        "fits": held < CAPACITY,
        "seconds": parts,
        "step": step,
        "tokens": gpus * WORK.batch * WORK.response / step,
        **{name: size / 1e9 for name, size in wire.items()},
    }


def main() -> None:
    rows = [row(model, gpus, way) for model in MODELS for gpus in LINKS for way in WAYS]
    shown = Table("", "GPUs", "how", "GB a GPU", "s a step", "tokens/s", "GB sent", title=f"{H100.name}; calculated")
    for r in rows:
        fit = [f"{r['step']:.1f}", f"{r['tokens']:.0f}"] if r["fits"] else ["does not fit", ""]
        shown.add_row(
            r["model"], str(r["gpus"]), r["way"], f"{r['gigabytes']:.0f}", *fit, f"{r['gradients'] + r['layers']:.1f}"
        )
    Console(width=120).print(shown)
    write_results("on_paper_scaleout", {"rows": rows, "gpu": H100.name, "work": asdict(WORK), "links": LINKS})


if __name__ == "__main__":
    main()
