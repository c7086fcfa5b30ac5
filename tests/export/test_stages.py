"""Runs of other stages are exported too, and a card tells of every stage that led to what is exported."""

import json
from io import StringIO

import pytest
import yaml
from rich.console import Console

from burnish.config import SFTConfig
from burnish.config.pipeline_config import pipeline_config
from burnish.stages.pipeline import run_pipeline
from burnish.stages.stage import STAGES
from runs_to_export import made, move, told_by, trained

NUMBERS = range(24)
LEARNED = {"epochs": 1, "batch_size": 8, "learning_rate": 0.01}
ADAPTERS = {"lora_r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "max_new_tokens": 8}
ASKED = {"chat_template": True, "system_prompt": "Be brief."}


@pytest.fixture(scope="module")
def settings(place):
    """What all stages share. Beside the prompts of the place, demonstrations and choices are written there."""
    rows = {
        "demonstrations": [{"prompt": f"count to {n}", "completion": f"one to {n}"} for n in NUMBERS],
        "preferences": [{"prompt": f"weigh {n}", "chosen": f"{n} stone", "rejected": f"no {n}"} for n in NUMBERS],
    }
    for name, own in rows.items():
        (place / f"{name}.jsonl").write_text("\n".join(map(json.dumps, own)))
    return {"model_name": str(place / "base.gguf")} | ADAPTERS | ASKED


@pytest.fixture(scope="module")
def sft_run(place, settings):
    own = LEARNED | {"num_eval_prompts": 4, "adapter_scope": "sequence"}
    data = {"demonstrations": str(place / "demonstrations.jsonl"), "run_dir": str(place / "runs"), "run_name": "taught"}
    run = STAGES["sft"].run(SFTConfig(**settings | own | data), Console(file=StringIO()))
    move(run.folder / "adapters/sft")
    return run.folder


@pytest.fixture(scope="module")
def pipeline_folder(place, settings):
    """SFT, reward model and PPO, in response scope."""
    stages = {
        "sft": LEARNED | {"demonstrations": str(place / "demonstrations.jsonl"), "num_eval_prompts": 4},
        "reward_model": LEARNED
        | {"preferences": str(place / "preferences.jsonl"), "num_eval_prompts": 6, "num_centring_prompts": 4},
        "ppo": {"prompts": str(place / "prompts.jsonl"), "num_eval_prompts": 8, "best_of": 1, "max_kl": None}
        | {"steps": 2, "batch_size": 8, "epochs": 1},
    }
    folder = place / "runs" / "whole"
    run = run_pipeline(pipeline_config({"model": settings} | stages, folder), Console(file=StringIO()))
    move(run.policy_folder)
    return folder


def card_of(found):
    return (found.folder / "README.md").read_text()


def result_of(run):
    return json.loads((run / "result.json").read_text())


@pytest.mark.parametrize("form", ["adapter", "merged"])
def test_an_sft_run_says_elsewhere_what_it_says_in_burnish(sft_run, tmp_path, form):
    found = made(sft_run, form, output=str(tmp_path / form))
    assert found.facts["compared"]["num_equal"] == 8
    card, result = card_of(found), result_of(sft_run)
    assert yaml.safe_load(card.split("---")[1])["tags"] == ["burnish", "sft", "lora"]
    before, after = result["loss_before"], result["loss_after"]
    assert f"| loss (nats per token) | {before:.3f} before, {after:.3f} after |" in card
    assert "| sft | training rows (demonstration) | 20 |\n| sft | held-out rows (demonstration) | 4 |" in card


def test_an_sft_run_is_not_distilled(sft_run, tmp_path):
    told = told_by(lambda: made(sft_run, "lora", output=str(tmp_path / "lora")))
    assert "is an SFT run, and --to lora is taught on a PPO run's prompts" in told
    assert not [*tmp_path.iterdir()]


def test_a_pipeline_is_exported_from_its_ppo_run_and_the_card_tells_of_the_stages_before_it(
    pipeline_folder, place, tmp_path
):
    told = told_by(lambda: made(pipeline_folder, "adapter", output=str(tmp_path / "none")))
    assert f"name one of its runs: {pipeline_folder / 'ppo'}" in told
    found = made(pipeline_folder / "ppo", "adapter", output=str(tmp_path / "adapter"))
    assert found.facts["compared"]["num_equal"] == 8
    card, results = card_of(found), {name: result_of(pipeline_folder / name) for name in ("sft", "reward", "ppo")}
    before, after = (results["sft"][f"loss_{when}"] for when in ("before", "after"))
    assert "Stages before it:" in card
    assert f"| sft | loss (nats per token) | {before:.3f} before, {after:.3f} after |" in card
    assert "| reward | agreement with people on 6 pairs |" in card
    assert "| ppo | held-out prompts | 8 |" in card
    assert "| sft | training rows (demonstration) | 20 |\n| sft | held-out rows (demonstration) | 4 |" in card
    assert "| reward | training rows (preference) | 18 |\n| reward | held-out rows (preference) | 6 |" in card
    for stage, source in (("sft", "demonstrations"), ("reward", "preferences"), ("ppo", "prompts")):
        assert f"| {stage} | source | `{source}.jsonl` |" in card
        assert f"| {stage} | fingerprint of all texts | `{results[stage]['data_fingerprint']}` |" in card
    for hidden in (str(place), "count to", "weigh 1", "stone"):
        assert hidden not in card


def test_the_card_of_a_pipelines_sft_run_tells_of_no_stage_before_it(pipeline_folder, tmp_path):
    card = card_of(made(pipeline_folder / "sft", "adapter", output=str(tmp_path / "adapter")))
    assert "Stages before it" not in card
    assert "| reward |" not in card


def test_a_card_has_few_rows_of_a_long_curve_the_first_and_the_last_among_them(place, tmp_path):
    run = trained(place, "long", adapter_scope="sequence")
    metrics = [{"step": n, "reward": n / 100, "kl": 0.5, "seconds": 1.0} for n in range(1, 41)]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, metrics)) + "\n")
    card = card_of(made(run, "adapter", output=str(tmp_path / "adapter")))
    head, _, *rows = card.split("In the course of training:\n\n")[1].split("\n\n")[0].splitlines()
    assert head == "| step | reward | kl |"
    told = [[float(cell) for cell in row.strip("|").split("|")] for row in rows]
    # Eight of forty, evenly spread: 0, 39/7, ... 39, rounded, and counted from 1.
    assert [step for step, *_ in told] == [1, 7, 12, 18, 23, 29, 34, 40]
    assert [(step / 100, 0.5) for step, *_ in told] == [(reward, kl) for _, reward, kl in told]


def test_a_cards_limits_are_what_the_verdict_has_against_the_run(place, tmp_path):
    run = trained(place, "judged", adapter_scope="sequence")
    verdict = json.loads((run / "verdict.json").read_text())
    verdict["tuned"]["reward"]["mean"] = 0.25
    against = {
        "outcome": "over-optimised",
        "best_of_n": {"n": 4, "reward": 0.5, "tuned_beats_it": 0.1},
        "habits": [{"phrase": "and now", "start": 1, "tuned": 7}],
    }
    nothing = {"outcome": "worth it", "best_of_n": against["best_of_n"] | {"reward": 0.1}, "habits": []}
    limits = {}
    for name, said in (("against", against), ("nothing", nothing)):
        (run / "verdict.json").write_text(json.dumps(verdict | said))
        card = card_of(made(run, "adapter", output=str(tmp_path / name)))
        limits[name] = card.split("## Limits\n")[1]
    for said in (
        "Its verdict is *over-optimised*",
        "The best of 4 answers of the start model gets more reward on average (0.500, and this one's single answers "
        "0.250), at 4 times the cost",
        '7 of its answers say "and now", and 1 of its start\'s to the same prompts',
    ):
        assert said in limits["against"]
    for said in ("verdict", "The best of", "habit"):
        assert said not in limits["nothing"]
