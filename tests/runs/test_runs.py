"""The run folder, and that its adapters load with peft in a fresh process and say the same."""

import fcntl
import json
import subprocess
import sys
import threading
import warnings

import pytest
import torch

from burnish import InputError, PolicyModel, PPOConfig, PPOTrainer, RewardModel, Sampler
from burnish.base_setup.base_setup import BaseSetup
from burnish.errors import LockedError
from burnish.models.adapter_files import load_adapter, save_to_run
from burnish.ppo.meanings import METRICS
from burnish.ppo.samples import log_step
from burnish.runs.run import Run
from tiny import PROMPTS, count_vowels, generate, perturb, tiny_model, tiny_tokenizer, tiny_trainer

FRESH_PROCESS = """
import json, sys, torch
from peft import PeftModel
from transformers import AutoModelForCausalLM
base_folder, adapter, prompts = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base_folder), adapter).eval()
out = []
for ids in prompts:
    tokens = model.generate(
        input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=12, do_sample=False
    )
    out.append(tokens[0, len(ids):].tolist())
print(json.dumps(out))
"""


@pytest.mark.parametrize("scope", ["response", "sequence"])
@pytest.mark.parametrize("lora_layers", ["all", 1])
def test_adapter_loads_with_peft_in_a_fresh_process_and_generates_the_same(tmp_path, scope, lora_layers):
    tiny_model().save_pretrained(tmp_path / "base")
    trainer = tiny_trainer(adapter_scope=scope, lora_layers=lora_layers)
    perturb(trainer)
    trainer.generator.agree_on_invocation(PROMPTS)
    encoded = trainer.generator.encoder.encode(PROMPTS)
    run = Run.new(tmp_path, "run").begin(trainer.config)
    folder = save_to_run(run, trainer.policy)
    rollout = generate(trainer.policy, encoded, 12, Sampler(greedy=True))
    ours = [a[m].tolist() for a, m in zip(rollout.action, rollout.mask, strict=True)]
    command = [sys.executable, "-c", FRESH_PROCESS, str(tmp_path / "base"), str(folder), json.dumps(encoded)]
    fresh = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(fresh.stdout.splitlines()[-1]) == ours
    base_rollout = generate(PolicyModel(trainer.base, None), encoded, 12, Sampler(greedy=True))
    assert [a[m].tolist() for a, m in zip(base_rollout.action, base_rollout.mask, strict=True)] != ours


@pytest.mark.filterwarnings("ignore:The prompts share no ending")
def test_adapter_config_names_the_invocation_only_where_there_is_one(tmp_path):
    for number, (scope, prompts, expected) in enumerate(
        [("response", ["a:", "b:"], ":"), ("sequence", ["a:", "b:"], None), ("response", ["a", "b"], None)]
    ):
        trainer = tiny_trainer(adapter_scope=scope)
        trainer.generator.agree_on_invocation(prompts)
        folder = save_to_run(Run.new(tmp_path, str(number)).begin(trainer.config), trainer.policy)
        if scope == "response" and expected is None:  # peft would take it for one that acts everywhere
            assert not (folder / "adapter_config.json").exists()
            continue
        tokens = json.loads((folder / "adapter_config.json").read_text())["alora_invocation_tokens"]
        assert (tokens and trainer.base.tokenizer.decode(tokens)) == expected


def test_saved_adapter_comes_back_bit_identical(tmp_path):
    trainer = tiny_trainer()
    perturb(trainer)
    trainer.generator.agree_on_invocation(PROMPTS)
    run = Run.new(tmp_path, "run").begin(trainer.config)
    folder = save_to_run(run, trainer.policy)
    save_to_run(run, trainer.policy)  # again, over the first
    setup = BaseSetup(PPOConfig(**run.settings), tiny_model(), tiny_tokenizer())
    setup.add_adapter("policy")
    load_adapter(setup.base, "policy", folder)
    saved, loaded = trainer.policy.parameters(), setup.base.adapter_parameters("policy")
    assert all(torch.equal(a, b) for a, b in zip(saved, loaded, strict=True))
    assert setup.base.invocation == trainer.base.invocation


def test_adapter_of_another_shape_is_refused(tmp_path):
    trainer = tiny_trainer()
    folder = save_to_run(Run.new(tmp_path, "run").begin(trainer.config), trainer.policy)
    with pytest.raises(InputError, match="has lora_r 4, this config asks for 8; set lora_r as in"):
        load_adapter(tiny_trainer(lora_r=8).base, "policy", folder)
    with pytest.raises(InputError, match="has lora_target_modules"):
        load_adapter(tiny_trainer(lora_target_modules=["q_proj"]).base, "policy", folder)
    bigger = PPOTrainer(trainer.config, count_vowels, tiny_model(intermediate_size=48), tiny_tokenizer())
    with pytest.raises(InputError, match="does not fit this base model"):
        load_adapter(bigger.base, "policy", folder)
    trainer.generator.agree_on_invocation(PROMPTS)
    save_to_run(Run(tmp_path / "run"), trainer.policy)
    with pytest.raises(InputError, match="trained with adapter_scope: response; set that"):
        load_adapter(tiny_trainer(adapter_scope="sequence").base, "policy", folder)
    other = tiny_trainer()
    other.generator.agree_on_invocation(["one?", "two?"])
    with pytest.raises(InputError, match="begins at tokens"):
        load_adapter(other.base, "policy", folder)
    (folder / "adapter_model.safetensors").write_bytes(b"short")
    with pytest.raises(InputError, match="does not fit"):
        load_adapter(tiny_trainer().base, "policy", folder)
    (folder / "adapter_config.json").write_text("{")
    with pytest.raises(InputError, match="is damaged"):
        load_adapter(tiny_trainer().base, "policy", folder)
    with pytest.raises(InputError, match="holds no adapter"):
        load_adapter(trainer.base, "policy", tmp_path)


def test_reward_model_folder_is_a_reward(tmp_path):
    setup = BaseSetup(tiny_trainer().config, tiny_model(), tiny_tokenizer())
    setup.add_adapter("reward")
    reward = RewardModel(setup.base, setup.encoder.encode)
    reward.mark_trained()
    setup.base.invocation = setup.encoder.encode(PROMPTS)[0][-1:]
    folder = save_to_run(Run.new(tmp_path, "reward").begin(tiny_trainer().config), reward)
    trainer = PPOTrainer(
        tiny_trainer(reward=None).config.model_copy(update={"reward": str(folder)}),
        None,
        tiny_model(),
        tiny_tokenizer(),
    )
    results = trainer.ppo_step(PROMPTS)
    assert results["rewards"] == pytest.approx(
        [reward.score(results["sa_pairs"].select(torch.tensor([i]))).item() for i in range(8)], abs=1e-4
    )


def test_metrics_and_samples_are_lines_of_json(tmp_path):
    trainer = tiny_trainer(steps=2)
    run = Run.new(tmp_path, "run").begin(trainer.config)

    def on_step(results):
        log_step(run, results, trainer.base.tokenizer, 2)

    trainer.train(PROMPTS, on_step)
    metrics = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [m["step"] for m in metrics] == [1, 2]
    # of half precision, servers, groups, tether, judges, several processes
    elsewhere = {"sampler_gap", "weight_cut", "flat_groups", "group_explained", "tether_weight", "reward_costs"}
    elsewhere |= {"seconds_by_process", "seconds_waited"}
    assert set(metrics[0]) | elsewhere == set(METRICS)
    samples = [json.loads(line) for line in (run.folder / "samples.jsonl").read_text().splitlines()]
    assert [s["step"] for s in samples] == [1, 1, 2, 2]
    for sample in samples:
        assert sample["prompt"] in PROMPTS
        lengths = {len(sample[k]) for k in ("tokens", "logprob_policy", "logprob_ref", "kl", "reward", "value")}
        lengths |= {len(sample[k]) for k in ("td_error", "advantage", "return", "entropy", "action")}
        assert len(lengths) == 1
        assert sample["reward"][-1] == pytest.approx(sample["score"] - 0.1 * sample["kl"][-1], abs=1e-5)


def test_a_run_is_never_written_over(tmp_path):
    config = tiny_trainer().config
    Run.new(tmp_path, "run").begin(config)
    with pytest.raises(InputError, match="exists already"):
        Run.new(tmp_path, "run")


def test_config_comes_back_as_it_was(tmp_path):
    config = tiny_trainer(lora_layers=[0, 1], value_clip=None).config
    assert PPOConfig(**Run.new(tmp_path, "run").begin(config).settings) == config
    with pytest.raises(InputError, match="is not a run folder"):
        Run.open(tmp_path)
    (tmp_path / "run" / "config.yaml").write_text("")
    with pytest.raises(InputError, match="is damaged"):
        PPOConfig(**Run.open(tmp_path / "run").settings)


def test_a_trainer_saves_what_a_run_leaves(tmp_path):
    trainer = tiny_trainer()
    trainer.ppo_step(PROMPTS)
    trainer.save(tmp_path / "mine")
    trainer.save(tmp_path / "mine")  # again, after more training
    assert PPOConfig(**Run.open(tmp_path / "mine").settings) == trainer.config
    assert {p.name for p in (tmp_path / "mine" / "adapters").iterdir()} == {"policy", "value"}


def test_an_adapter_trained_without_a_shared_ending_keeps_to_the_last_token(tmp_path):
    """Prompts that do share one must not widen where it acts: it was never trained there."""
    trainer = tiny_trainer()
    with pytest.warns(UserWarning, match="share no ending"):
        trainer.generator.agree_on_invocation(["one a", "two b"])
    folder = save_to_run(Run.new(tmp_path, "run").begin(trainer.config), trainer.policy)
    other = tiny_trainer()
    load_adapter(other.base, "policy", folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.generator.agree_on_invocation(["one TL;DR:", "two TL;DR:"])
    assert other.base.invocation == []
    sharing = tiny_trainer()
    sharing.generator.agree_on_invocation(["one TL;DR:", "two TL;DR:"])
    another = save_to_run(Run.new(tmp_path, "another").begin(sharing.config), sharing.value_model)
    with pytest.raises(InputError, match=r"begins at tokens .*, others here at \[\]"):
        load_adapter(other.base, "value", another)


def test_a_lock_just_taken_is_named_too(tmp_path):
    """Between taking the lock and writing down who took it there is a moment; it must not cost the name."""
    with (tmp_path / ".lock").open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        named = threading.Timer(0.3, lambda: (first.write("process 77 since 2026"), first.flush()))
        named.start()
        with pytest.raises(LockedError, match="in use by process 77 since 2026"), Run(tmp_path).lock():
            pass
        named.join()


def test_a_stage_that_this_version_does_not_know_ends_in_a_sentence(tmp_path):
    run = Run.new(tmp_path, "run").begin(tiny_trainer().config)
    text = (run.folder / "config.yaml").read_text()
    assert text.startswith("format: 2\nstage: ppo\n")
    (run.folder / "config.yaml").write_text(text.replace("stage: ppo", "stage: dpo"))
    with pytest.raises(InputError, match="is a run of a stage 'dpo', which this version does not know"):
        _ = run.stage


@pytest.mark.parametrize(("key", "stage"), [("demonstrations", "sft"), ("preferences", "reward"), ("prompts", "ppo")])
def test_the_stage_of_a_run_of_an_older_version_is_known_by_its_keys(tmp_path, key, stage):
    (tmp_path / "config.yaml").write_text(f"{key}: file.jsonl\n")
    assert Run(tmp_path).stage == stage
