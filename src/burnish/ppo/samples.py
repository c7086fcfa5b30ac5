"""Responses as lines of a run's files: each token with everything that is known of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from burnish.ppo.meanings import METRICS
from burnish.runs.run import Run
from burnish.sa_pairs.response import columns_of_response
from burnish.sa_pairs.table import SAPairs


def log_step(run: Run, results: dict[str, Any], tokenizer: Any, num_samples: int) -> None:
    """A step's metrics, and the first of its responses."""
    run.log({name: results[name] for name in METRICS if name in results})
    for number in range(min(num_samples, len(results["prompts"]))):
        heading = {
            "step": results["step"],
            "prompt": results["prompts"][number],
            "response": results["generated_texts"][number],
            "score": results["rewards"][number],
        }
        if len(parts := results["rewards"].parts) > 1:
            heading["reward_parts"] = {name: own[number] for name, own in parts.items()}
        run.append("samples.jsonl", heading | columns_of_response(results["sa_pairs"], number, tokenizer.decode))


def response_rows(step: int, texts: list[str], pairs: SAPairs, tokenizer: Any) -> Iterator[dict[str, Any]]:
    """All responses of a step that went wrong before it had scores."""
    for number, text in enumerate(texts):
        heading = {"step": step, "number": pairs.numbers[number], "response": text}
        yield heading | columns_of_response(pairs, number, tokenizer.decode)
