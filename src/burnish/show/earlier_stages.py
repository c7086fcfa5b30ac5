"""What came of the stages before PPO in a pipeline, from the files that they left."""

from __future__ import annotations

from typing import Any

from burnish.runs.run import Run

Row = tuple[str, str]  # what was measured, and the result beside what it is compared with


def earlier_stages(run: Run) -> list[tuple[str, str, str]]:
    """Of each finished stage of the same pipeline, what was measured on held-out data and the result."""
    return [(stage.folder.name, *row) for stage in stages_before(run) for row in measured_of(stage)]


def stages_before(run: Run) -> list[Run]:
    """The finished SFT and reward models of the same pipeline; of a run that is no stage of one, none."""
    if run.pipeline_folder is None or run.stage != "ppo":
        return []
    siblings = [Run(file.parent) for file in run.pipeline_folder.glob("*/config.yaml")]
    finished = [s for s in siblings if s.is_complete and s.stage != "ppo"]
    return sorted(finished, key=lambda s: (s.stage != "sft", s.folder.name))


def measured_of(stage: Run) -> list[Row]:
    """Of a finished SFT or reward stage, on held-out data."""
    result = stage.read("result.json")
    return [*_of_sft(result), *_of_pairs(result.get("report")), *_of_scores(result)]


def _of_sft(result: dict[str, Any]) -> list[Row]:
    before, after = result.get("loss_before"), result.get("loss_after")
    if before is None or after is None:
        return []
    return [("loss (nats per token)", f"{before:.3f} before, {after:.3f} after")]


def _of_pairs(report: dict[str, Any] | None) -> list[Row]:
    if not report:
        return []
    low, high = report["accuracy_interval"]
    return [
        (
            f"agreement with people on {report['num_pairs']} pairs",
            f"{report['accuracy']:.0%} ({low:.0%} to {high:.0%}); choosing the longer answer "
            f"{report['longer_wins']:.0%}, a bag-of-words classifier {report['bag_of_words']:.0%}",
        )
    ]


def _of_scores(result: dict[str, Any]) -> list[Row]:
    if "score_correlation" not in result:
        return []
    low, high = result["score_correlation_interval"]
    found, alone = f"{result['score_correlation']:.2f} ({low:.2f} to {high:.2f})", f"{result['length_baseline']:.2f}"
    return [(f"correlation with {result['num_scores']} human scores", f"{found}; length alone {alone}")]
