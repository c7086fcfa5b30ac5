"""Results that show themselves in a notebook: escaped, small, by the same numbers as the report."""

import builtins
import re

import pytest

from burnish import InputError, SAPairs
from burnish.config import SFTConfig, TrainConfig
from burnish.evaluation.paired import compare
from burnish.evaluation.verdict import Verdict
from burnish.runs.run import Run
from tiny import PROMPTS, tiny_trainer

HOSTILE = "<script>alert(1)</script> $x^2$ \x1b[31m \" onfocus='x' &"
SIDE = {"reward": {"mean": 0.1, "half_interval_95": 0.05}, "distinct_1": 0.5, "distinct_2": 0.9}
VERDICT = {
    "outcome": "worth it",
    "sentence": HOSTILE,
    "win_rate": {"rate": 0.8, "interval": [0.6, 0.9], "num_prompts": 20},
    "win_rate_by_second_reward": None,
    "win_rate_by_people": None,
    "best_of_n": None,
    "start": SIDE,
    "tuned": SIDE,
}
OUTSIDE = re.compile(r"<script|onerror=|onfocus='|src=|href=|url\(|@import|\x1b")


@pytest.fixture(scope="module")
def trainer():
    made = tiny_trainer()
    made.results = made.ppo_step(PROMPTS[:4] * 2)
    return made


def test_pairs_show_their_tokens_with_credit(trainer):
    pairs = trainer.results["sa_pairs"]
    html = pairs._repr_html_()
    shown = re.findall(r'<span class="token( minus)?" style="--s:(\d+)" tabindex="0" data-numbers="([^"]*)">', html)
    assert len(shown) == sum(pairs.lengths[:4].tolist())
    assert "and 4 responses more" in html
    mean = float(pairs["advantage"][pairs.mask].mean())
    minus, _, numbers = shown[0]
    first = pairs[0]
    assert (minus == " minus") == (first["advantage"] < mean)
    assert f"advantage {first['advantage']:+.3f}" in numbers
    assert f"value {first['value']:+.3f}" in numbers
    assert max(int(own[1]) for own in shown) == 100
    assert f"<small>{first['advantage'] - mean:+.2f}</small>" in html
    assert len(html) < 60_000


def test_without_credit_or_texts_pairs_show_what_they_have():
    html = SAPairs.of_tokens([[1, 2]], [[3, 4, 5]])._repr_html_()
    assert re.findall(r"<b>(\[\d+\])</b>", html) == ["[3]", "[4]", "[5]"]
    assert "Coloured by" not in html


def test_long_responses_are_cut():
    html = SAPairs.of_tokens([[1]] * 9, [[7] * 500] * 9)._repr_html_()
    assert html.count('class="token"') == 4 * 80
    assert "the first 80 of 500 tokens" in html
    assert "and 5 responses more" in html


def test_texts_of_models_do_nothing_but_stand_there(trainer):
    from dataclasses import replace

    pairs = replace(trainer.results["sa_pairs"], decode=lambda ids: HOSTILE)
    html = pairs._repr_html_()
    assert not OUTSIDE.search(html)
    assert "&lt;script&gt;" in html
    assert html.startswith('<div class="burnish mathjax_ignore')  # dollar signs are no formulas


def test_secrets_are_not_shown(trainer, monkeypatch):
    from dataclasses import replace

    monkeypatch.setenv("MY_API_KEY", "abcdefghij")
    pieces = iter(["abcde", "fghij"] * 1000)
    pairs = replace(trainer.results["sa_pairs"], decode=lambda ids: next(pieces))
    assert "[hidden]" in pairs._repr_html_()
    settings = trainer.config.model_copy(update={"system_prompt": "abcdefghij", "chat_template": True})
    monkeypatch.setattr(trainer, "config", settings)
    assert "abcdefghij" not in trainer._repr_html_()


def test_a_trainer_shows_settings_curves_and_its_last_responses(trainer):
    html = trainer._repr_html_()
    assert "step 1 of 10" in html
    assert "<td>lora_r</td><td>4</td>" in html
    assert [own["step"] for own in trainer.history] == [1]
    assert html.count("<figure>") == 6
    assert 'class="dot"' in html  # one step is a point
    assert html.count('<div class="response">') == 2
    assert not OUTSIDE.search(html)


def test_a_trainer_without_a_step_shows_its_settings():
    html = tiny_trainer()._repr_html_()
    assert "step 0 of 10" in html
    assert "<figure>" not in html


def test_a_run_shows_its_state_curves_and_verdict(tmp_path):
    run = Run.new(tmp_path, "my <b>run").begin(TrainConfig(prompts="p.txt"))
    assert "ppo, stopped" in run._repr_html_()  # before its first step
    for step in range(1, 5001):
        run.log({"step": step, "reward": step / 5000, "kl": 1.0, "reward_parts": {HOSTILE: 1.0, "b": 2.0}})
    html = run._repr_html_()
    assert "my &lt;b&gt;run" in html
    assert html.count("<figure>") == 2
    assert len(html) < 60_000
    run.write("verdict.json", VERDICT)
    html = run._repr_html_()
    assert "worth it" in html
    assert not OUTSIDE.search(html)
    supervised = Run.new(tmp_path, "sft").begin(SFTConfig(demonstrations="d.jsonl"))
    supervised.log({"update": 1, "loss": 2.5})
    assert "<span>Loss</span><span>2.5</span>" in supervised._repr_html_()


def test_a_verdict_shows_its_sentence_and_who_won():
    wins = compare([0.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0])
    html = Verdict("worth it", "Worth it: yes.", wins, None, None, None)._repr_html_()
    assert "Worth it: yes." in html
    assert "<td>better by the reward</td><td>1</td><td>3 (" in html


def test_pairs_as_a_data_frame(trainer):
    pairs = trainer.results["sa_pairs"]
    frame = pairs.to_pandas()
    assert len(frame) == len(pairs)
    row = pairs[3]
    for key in ("prompt_id", "position", "action", "logprob_policy", "kl", "advantage", "return", "finished"):
        assert frame[key][3] == row[key]
    assert frame["token"][3] == trainer.base.tokenizer.decode([row["action"]])
    assert frame.groupby("prompt_id")["position"].max().tolist() == (pairs.lengths - 1).tolist()


def test_without_pandas_it_is_said(trainer, monkeypatch):
    imported = builtins.__import__

    def without_pandas(name, *more):
        if name == "pandas":
            raise ImportError(name)
        return imported(name, *more)

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(InputError, match=r"pip install 'burnish\[pandas\]'"):
        trainer.results["sa_pairs"].to_pandas()
