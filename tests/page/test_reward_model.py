"""What the page shows of a reward model: the numbers that its run kept."""

import re

import pytest

from burnish.config import RewardModelConfig
from burnish.runs.run import Run
from served import served

HOSTILE = "<script>document.title = 'owned'</script><img src=x>"
REPORT = {
    "num_pairs": 40,
    "accuracy": 0.7,
    "accuracy_interval": [0.55, 0.82],
    "margin": 0.31,
    "calibration_error": 0.08,
    "length_correlation": 0.62,
    "longer_wins": 0.4,
    "bag_of_words": 0.58,
    "mistakes": [{"prompt": HOSTILE, "chosen": HOSTILE, "rejected": "b", "margin": -1.5}],
    "calibration": [{"count": 20, "sure": 0.6, "right": 0.55, "interval": [0.34, 0.74]},
                    {"count": 20, "sure": 0.9, "right": 0.85, "interval": [0.64, 0.95]}],
    "by_length": {"longer": {"count": 16, "right": 0.9, "interval": [0.64, 0.97]}},
}  # fmt: skip


@pytest.fixture
def page(tmp_path):
    with served(tmp_path) as found:
        yield found


def reward_run(folder, name, result):
    run = Run.new(folder, name).begin(RewardModelConfig(preferences="p.jsonl"))
    if result is not None:
        run.write("result.json", result)


def test_accuracy_calibration_length_and_mistakes_are_shown(page, tmp_path):
    reward_run(tmp_path, "judge", {"report": REPORT, "verdict": f"It agrees. {HOSTILE}"})
    shown = page.ask("/api/reward/judge").json
    assert [(own["name"], own["rate"]) for own in shown["accuracy"]] == [
        ("this reward model", 0.7),
        ("choosing the longer answer", 0.4),
        ("choosing the shorter answer", 0.6),
        ("a bag-of-words classifier", 0.58),
    ]
    assert (shown["calibration"], shown["by_length"]) == (REPORT["calibration"], REPORT["by_length"])
    text = page.ask("/reward/judge").text
    assert text.count("<script") == 1
    assert "<img" not in text
    assert re.search(r"55 % to 82 %", text)
    assert "it likes length as such" in text
    assert 'aria-current="page" data-key="2">Reward model' in text
    # sure 0.9 is 0.4 of the half from 0.5 to 1: 44 + 306 * 0.8; right 0.85 is 210 - 195 * 0.85
    assert 'cx="288.8" cy="44.2"' in text


def test_one_that_learned_from_scores_or_is_not_finished_says_so(page, tmp_path):
    scores = {
        "num_scores": 9,
        "score_correlation": 0.5,
        "score_correlation_interval": [0.1, 0.8],
        "length_baseline": 0.2,
    }
    reward_run(tmp_path, "scores", scores | {"verdict_on_scores": "Its scores follow."})
    reward_run(tmp_path, "begun", None)
    reward_run(
        tmp_path, "older", {"report": {key: REPORT[key] for key in REPORT if key not in ("calibration", "by_length")}}
    )
    reward_run(tmp_path, "broken", {"report": {"accuracy": 1}})
    assert page.ask("/api/reward/scores").json["human_scores"] == scores
    assert "0.10 to 0.80" in page.ask("/reward/scores").text
    assert "It is measured on held-out judgements when it is trained" in page.ask("/reward/begun").text
    assert "how often it is right: 0.08" in page.ask("/reward/older").text
    broken = page.ask("/reward/broken")
    assert (broken.status, "result.json of broken is damaged" in broken.text) == (422, True)
