"""What speed is measured with: texts of known length, responses of full length, a stopwatch, the machine's own rate."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from burnish.config import PPOConfig
from burnish.data.bundled import bundled_tldr
from burnish.decoder.memory import peak_bytes
from burnish.errors import InputError
from burnish.ppo.memory_report import predicted_peak
from burnish.ppo.ppo_trainer import PPOTrainer

LENGTHS = {"short": (16, 64), "tldr": (200, 400)}  # prompt tokens, drawn evenly
SHAPES = {"short": LENGTHS["short"], "long": LENGTHS["tldr"]}
CPU = torch.device("cpu")
ENDING = "\nTL;DR:"  # that all prompts share, so that adapters know where to begin
WAITED = "synchronizing CUDA operation"  # torch's words


def prompts_of_length(tokenizer: Any, lengths: tuple[int, int], count: int, seed: int = 0) -> list[str]:
    """Prompts of bundled text, each cut at a word so that it has no more tokens than its drawn length."""
    low, high = lengths
    draw = random.Random(seed)
    words = " ".join(bundled_tldr().train).split(" ")
    prompts = []
    for number in range(count):
        # Lengths evenly spread: every batch has the same mean length, whatever the seed.
        length = round(low + (high - low) * (number % 16 + 0.5) / 16) if high > low else low
        start = draw.randrange(len(words) - high - 1)
        prompts.append(_cut(tokenizer, " ".join(words[start : start + high]), length))
    return prompts


def _cut(tokenizer: Any, text: str, length: int) -> str:
    while len(ids := tokenizer(text, add_special_tokens=False)["input_ids"]) > length:
        if " " not in text:
            return tokenizer.decode(ids[:length])
        too_many, num_words = len(ids) - length, text.count(" ") + 1
        text = text.rsplit(" ", max(1, min(too_many // 2, too_many * num_words // len(ids))))[0]
    return text


def ignore_stop_tokens(trainer: PPOTrainer) -> None:
    """From now on every response of this trainer has its full length, so that shapes are known beforehand."""
    trainer.generator.stop_ids = []


def matmul_rate(
    seconds: float = 1.0, size: int = 2048, device: torch.device = CPU, dtype: torch.dtype = torch.float32
) -> float:
    """GFLOP/s in matrix products, at a size where nothing else matters."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    (a @ b).sum()
    wait_for(device)
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        a @ b
        wait_for(device)
        count += 1
    return 2 * size**3 * count / (time.perf_counter() - start) / 1e9


def wait_for(device: torch.device) -> None:
    """Returns when the device has done all that it was told to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


class Stopwatch:
    """Adds up the seconds of methods; time inside a nested one belongs to the nested one alone."""

    def __init__(self, device: torch.device = CPU) -> None:
        self.seconds: dict[str, float] = {}
        self._device = device
        self._inner = [0.0]

    def on(self, owner: Any, method: str, part: str) -> None:
        original: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            wait_for(self._device)
            start = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                wait_for(self._device)
                whole = time.perf_counter() - start
                self.seconds[part] = self.seconds.get(part, 0.0) + whole - self._inner.pop()
                self._inner[-1] += whole

        setattr(owner, method, timed)


def forget_peak(device: torch.device) -> None:
    """The next `peak_of` is about what comes now; of a process, the peak cannot be forgotten."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_of(device: torch.device) -> int:
    """The most bytes held: on a GPU by torch's tensors, else by this process."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_bytes()


@contextmanager
def waits_of_host() -> Iterator[Callable[[], int]]:
    """Gives what tells how often the host has waited for a CUDA device so far."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield lambda: sum(WAITED in str(warning.message) for warning in told)
        finally:
            torch.cuda.set_sync_debug_mode("default")


# ------------------------------------------------------------------------------------------ the steps of a benchmark


def load(config: PPOConfig) -> PPOTrainer:
    """A trainer whose responses all have their full length."""
    trainer = PPOTrainer(config)
    ignore_stop_tokens(trainer)
    return trainer


def model_facts(trainer: PPOTrainer) -> dict[str, Any]:
    base = trainer.base
    return {
        "name": base.identity.name,
        "parameters": sum(p.numel() for n, p in base.model.named_parameters() if "lora_" not in n),
        "layers": base.num_layers,
        "device": str(base.device),
        "dtype": base.identity.dtype,
        "sharing": base.decoder.sharing,
        "reason": base.decoder.reason,
        "shares_prefixes": base.shares_prefixes,
    }


def matmul_rates(trainer: PPOTrainer) -> dict[str, float]:
    """GFLOP/s of the device, in float32 and in the base's own format."""
    device, own = trainer.base.device, trainer.base.head.dtype
    size = 2048 if device.type == "cpu" else 8192
    return {
        str(dtype).removeprefix("torch."): round(matmul_rate(1.0, size, device, dtype), 1)
        for dtype in dict.fromkeys((torch.float32, own))
    }


@dataclass(frozen=True)
class Shape:
    """Prompts of one length, for as many steps as are measured and one more, and what they are expected to need."""

    name: str
    prompts: list[str]
    prompt_tokens: tuple[int, int]
    predicted_peak: float

    def measure(self, trainer: PPOTrainer, watch: Stopwatch) -> dict[str, Any]:
        """The step of median length, part by part; of the rest the worst. `watch` is that of `watched`."""
        config, device = trainer.config, trainer.base.device
        if not self.prompts:
            room = trainer.setup.encoder.max_prompt_tokens
            return {"name": self.name, "left_out": f"the model reads prompts of {room} tokens at most"}
        forget_peak(device)
        runs, everything = [], []
        for step in range(config.steps + 1):
            watch.seconds = {}
            results = trainer.ppo_step(trainer.prompts_of_step(self.prompts, step))
            everything.append(results)
            if step:  # the first one also pays for first uses
                runs.append({"step": results["seconds"], **watch.seconds})
        run = sorted(runs, key=lambda r: r["step"])[(len(runs) - 1) // 2]
        tokens = int(everything[-1]["sa_pairs"].mask.sum())
        learned = {"rollout": tokens, "scoring": tokens, "training": config.epochs * tokens}
        gaps = [r["sampler_gap"] for r in everything if "sampler_gap" in r]
        return {
            "name": self.name,
            "prompt_tokens": self.prompt_tokens,
            "responses": config.batch_size,
            "new_tokens": config.max_new_tokens,
            "seconds": run,
            "seconds_of_all_steps": [r["step"] for r in runs],
            "tokens_per_second": {part: count / run[part] for part, count in learned.items()},
            "peak_mb": peak_of(device) / 2**20,
            "predicted_peak_mb": self.predicted_peak / 2**20,
            "first_ratio_error": max(r.get("first_ratio_error", 0.0) for r in everything),
            "sampler_gap": max(gaps) if gaps else None,
            "waits_per_token": waits_per_token(trainer, self.prompts[: config.batch_size]),
        }


def shapes_of(trainer: PPOTrainer) -> list[Shape]:
    """All are made before the first step: predictions are about what is to come."""
    encoder, config = trainer.setup.encoder, trainer.config
    count, room = config.prompts_per_step * (config.steps + 1), encoder.max_prompt_tokens
    longest = {name: lengths[1] + encoder.count_tokens(ENDING) for name, lengths in SHAPES.items()}
    if min(longest.values()) > room:
        raise InputError(
            f"the model reads prompts of {room} tokens at most, and the benchmark's have up to "
            f"{min(longest.values())}; lower max_new_tokens, or use another model"
        )
    texts: dict[str, list[str]] = {name: [] for name in SHAPES}
    for name, lengths in SHAPES.items():
        if longest[name] <= room:
            texts[name] = [p + ENDING for p in prompts_of_length(encoder.tokenizer, lengths, count)]
    trainer.generator.agree_on_invocation([p for own in texts.values() for p in own])
    shapes = []
    for name, prompts in texts.items():
        sizes = [len(ids) for ids in encoder.encode(prompts)] if prompts else [0]
        peak = predicted_peak(trainer, prompts) if prompts else 0.0
        shapes.append(Shape(name, prompts, (min(sizes), max(sizes)), peak))
    return shapes


def watched(trainer: PPOTrainer) -> Stopwatch:
    """Rollout is what the engine does; scoring the reference's and the value model's passes; training the rest."""
    watch = Stopwatch(trainer.base.device)
    watch.on(trainer.generator.engine, "generate", "rollout")
    watch.on(trainer.generator.extractor, "extract", "scoring")
    if trainer.value_adder is not None:
        watch.on(trainer.value_adder, "add_values_to_sa_pairs", "scoring")
        watch.on(trainer.model_trainer, "train_value_model", "training")
    watch.on(trainer.model_trainer, "train_policy_model", "training")
    return watch


def waits_per_token(trainer: PPOTrainer, prompts: list[str]) -> float | None:
    """How often the host waits for a CUDA device while each response gets one more token; None on other devices."""
    device, most = trainer.base.device, trainer.config.max_new_tokens
    if device.type != "cuda" or most < 2:
        return None
    encoded = trainer.setup.encoder.encode(prompts)

    def waits(num_tokens: int) -> int:
        generator = torch.Generator(device).manual_seed(0)
        with waits_of_host() as counted:
            trainer.generator.engine.generate(
                trainer.policy, encoded, num_tokens, trainer.generator.sampler, generator, []
            )
            return counted()

    return (waits(most) - waits(most // 2)) / (most - most // 2)
