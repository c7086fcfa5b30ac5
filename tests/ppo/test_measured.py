"""What is told to a person is what was measured: metrics, held-out KL, rewards and differences, worked out by hand."""

import io
import json
from statistics import fmean

import pytest
import torch
from rich.console import Console

from burnish import SAPairs
from burnish.config import TrainConfig
from burnish.evaluation.measure import evaluate
from burnish.ppo.metrics import step_metrics
from burnish.ppo.scores import Scores
from burnish.runs.run import Run
from burnish.sa_pairs.padding import left_padded
from burnish.stages.overview import show_difference
from burnish.stages.reward_test import show_reward
from tiny import PROMPTS, perturb, tiny_trainer

# Two responses, of two tokens and of one.
KEYS = "prompt_id logprob_policy logprob_sampler exact_kl entropy value return advantage finished".split()
ROWS = [
    (0, -1.0, -1.1, 0.5, 0.5, 0.2, 1.0, 1.0, True),
    (0, -2.0, -1.9, 1.0, 1.0, 0.4, 2.0, -1.0, True),
    (1, -0.5, -0.9, 2.5, 0.3, 0.9, 3.0, 3.0, False),
]


def metrics(rewards):
    pairs = SAPairs.from_dicts([dict(zip(KEYS, row, strict=True)) for row in ROWS])
    return step_metrics(pairs, torch.tensor(Scores(rewards).totals), kl_coef=0.05)


def test_metrics_of_a_step_by_hand():
    expected = {
        "reward": 2.5,
        "reward_std": 1.5,
        "kl_coef": 0.05,
        "sampler_gap": 0.2,  # (0.1 + 0.1 + 0.4) / 3 tokens
        "entropy": 0.6,  # (0.5 + 1.0 + 0.3) / 3 tokens
        "response_tokens": 1.5,
        "finished": 0.5,
        "value": 0.5,
        "returns": 2.0,
        "advantage_mean": 1.0,
        "advantage_std": 1.632993,  # sqrt((0 + 4 + 4) / 3)
        "explained_variance": 0.57,  # errors 0.8, 1.6, 2.1: 1 - (0.49 + 0.01 + 0.36) / (1 + 0 + 1)
    }
    found = metrics([1.0, 4.0])
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-5)
    assert metrics([[1.0, 2.0], [4.0]])["reward"] == pytest.approx(3.5)  # of tokens: their sum in each response


def test_kl_of_a_step_is_that_of_a_response_and_not_of_a_token():
    # the exact KL of the positions: 0.5 + 1.0 in the first response, 2.5 in the second
    assert metrics([1.0, 4.0])["kl"] == pytest.approx((1.5 + 2.5) / 2)


def test_held_out_kl_is_that_from_the_policy_to_its_reference():
    """KL(policy || reference) of the one token that is drawn, against both whole distributions; not the other way."""
    trainer = tiny_trainer(top_k=0, top_p=1.0, max_new_tokens=1, batch_size=64)
    perturb(trainer)
    trainer.generator.agree_on_invocation(PROMPTS)
    prompt = PROMPTS[-1]  # of all, the one for which the two ways differ most
    context = trainer.base.build_context(
        *left_padded(trainer.generator.encoder.encode([prompt])), torch.zeros(1, 1).long()
    )
    with torch.no_grad():
        p, q = (
            (trainer.base.state_hidden(role, context)[0, 0] @ trainer.base.head.T).log_softmax(-1)
            for role in ("policy", None)
        )
    forward, backward = float((p.exp() * (p - q)).sum()), float((q.exp() * (q - p)).sum())
    assert abs(forward - backward) > 0.8
    assert fmean(evaluate(trainer, [prompt] * 640).kl) == pytest.approx(forward, abs=0.3)  # four standard errors


def rows_of(console):
    """Lines of a shown table, as words."""
    return [line.split() for line in console.export_text().splitlines()]


def recording():
    return Console(record=True, width=120, file=io.StringIO())


def test_reward_test_shows_what_each_part_counts_and_their_sum():
    band = {"kind": "rule", "name": "length_band", "weight": 2, "options": {"low": 2, "high": 4}}
    config = TrainConfig(prompts="-", reward=[band, {"kind": "rule", "name": "repetition", "weight": 0.5}])
    console = recording()
    show_reward(console, config, "a prompt", "a b a b a b")
    # six words, halfway from 4 to 8; five word pairs, of which three were there before
    assert [row for row in rows_of(console)[1:] if row] == [
        ["length_band", "0.500", "2", "+1.000"],
        ["repetition", "-0.600", "0.5", "-0.300"],
        ["reward", "+0.700"],
    ]


def test_the_difference_of_two_runs_is_in_their_columns(tmp_path):
    for name, steps, rewards in (("a", 3, [0.125, 0.25]), ("b", 5, [0.5])):
        run = Run(tmp_path / name).begin(TrainConfig(prompts="p.jsonl", steps=steps, run_name=name))
        for reward in rewards:
            run.log({"step": 1, "reward": reward, "kl": 1.0})
    (tmp_path / "b" / "verdict.json").write_text(
        json.dumps(
            {"outcome": "worth it", **{s: {"reward": {"mean": m}} for s, m in (("start", 0.25), ("tuned", 0.75))}}
        )
    )
    console = recording()
    show_difference(console, str(tmp_path / "a"), str(tmp_path / "b"))
    rows = rows_of(console)
    assert [row for row in rows[1:] if row] == [
        ["steps", "3", "5"],
        ["last", "reward", "0.250", "0.500"],
        ["last", "kl", "1.000", "1.000"],
        ["held-out", "reward", "-", "0.750"],
        ["outcome", "unfinished", "worth", "it:", "reward", "0.25", "to", "0.75"],
    ]
