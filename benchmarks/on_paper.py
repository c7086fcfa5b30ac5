"""On paper: what a PPO step needs on a GPU that this project has not been measured on.

    python benchmarks/on_paper.py

Memory per role and a lower bound of the time of every part, from shapes and a data sheet: the linear layers' products
at the sheet's bfloat16 rate (attention and adapters left out), decoding at the speed of reading the weights and the
cache once per token. Real steps take longer; what carries over is the ratio between the settings.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from workload import write_results


@dataclass(frozen=True)
class Shape:
    """A decoder; the numbers below are those of Qwen2.5-7B."""

    layers: int = 28
    hidden: int = 3584
    intermediate: int = 18944
    key_values: int = 512
    """Width of the keys of one layer (key heads x head size)."""
    vocabulary: int = 152064
    lora_r: int = 16

    @property
    def layer_parameters(self) -> int:
        return 2 * self.hidden**2 + 2 * self.hidden * self.key_values + 3 * self.hidden * self.intermediate

    @property
    def lora_parameters(self) -> int:
        """Of one layer."""
        sums = 2 * 2 * self.hidden + 2 * (self.hidden + self.key_values) + 3 * (self.hidden + self.intermediate)
        return self.lora_r * sums

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + 2 * self.vocabulary * self.hidden

    def activation_numbers(self) -> int:
        """Per token and layer, as Decoder.activation_bytes counts them (without the prefix)."""
        return 8 * self.hidden + 2 * self.key_values + 4 * self.intermediate


@dataclass(frozen=True)
class Work:
    batch: int = 64
    prompt: int = 300
    response: int = 64
    epochs: int = 4
    micro_batch_tokens: int = 1024


@dataclass(frozen=True)
class Gpu:
    """Bfloat16 products and memory bandwidth by its data sheet."""

    name: str = "A100, 80 GB"
    flops: float = 312e12
    bytes_per_second: float = 2.0e12


def step(shape: Shape, work: Work, gpu: Gpu, scope: str, adapted: int) -> dict[str, float]:
    """Seconds (bounds) and gigabytes of one PPO step. Base in 2 bytes; adapters, gradients, Adam in 4 each."""
    bytes_each = 2
    computed = work.response + (0 if scope == "response" else work.prompt)  # tokens of a sequence in a scoring pass
    upper = 2 * shape.layer_parameters * adapted * work.batch * computed  # one forward pass above the trunk
    head = 2 * shape.hidden * shape.vocabulary * work.batch * work.response
    everything = 2 * shape.layer_parameters * shape.layers * work.batch
    keys = 2 * shape.layers * shape.key_values * bytes_each  # of one token
    streamed = shape.parameters - shape.vocabulary * shape.hidden  # the embedding is looked up, not streamed
    read_per_token = streamed * bytes_each + work.batch * (work.prompt + work.response / 2) * keys
    training = 2 * work.epochs * 2 * upper  # two roles, forward and backward to the inputs
    lora = adapted * shape.lora_parameters
    return {
        "prompts": everything * work.prompt / gpu.flops,
        "decode": work.response * read_per_token / gpu.bytes_per_second,
        "reference and value": (2 * upper + head) / gpu.flops,
        "training": (training + work.epochs * 2 * head) / gpu.flops,
        "base GB": shape.parameters * bytes_each / 1e9,
        "policy and value GB": 2 * 16 * lora / 1e9,
        "rollout GB": work.batch * (work.prompt + work.response) * keys / 1e9,
        "training pass GB": work.micro_batch_tokens * adapted * shape.activation_numbers() * bytes_each / 1e9,
    }


def main() -> None:
    shape, work, gpu = Shape(), Work(), Gpu()
    settings = {
        "sequence scope, all layers": ("sequence", shape.layers),
        "response scope, all layers": ("response", shape.layers),
        "response scope, top third": ("response", round(shape.layers / 3)),
    }
    rows = {name: step(shape, work, gpu, *setting) for name, setting in settings.items()}
    what = f"{work.batch} prompts of {work.prompt} tokens, {work.response} new ones, {work.epochs} epochs"
    table = Table("", *rows, title=f"{what}; {shape.parameters / 1e9:.1f}B parameters; {gpu.name}")
    for key in next(iter(rows.values())):
        table.add_row(key if "GB" in key else f"{key} (s)", *(f"{row[key]:.2f}" for row in rows.values()))
    seconds = {name: sum(v for k, v in row.items() if "GB" not in k) for name, row in rows.items()}
    tokens = work.batch * work.response
    table.add_section()
    table.add_row("the step at least (s)", *(f"{s:.2f}" for s in seconds.values()))
    table.add_row("generated tokens per second, at most", *(f"{tokens / s:.0f}" for s in seconds.values()))
    Console(width=130).print(table)
    write_results("on_paper", {"rows": rows, "summary": {name: round(s, 3) for name, s in seconds.items()}})


if __name__ == "__main__":
    main()
