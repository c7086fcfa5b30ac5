"""A run goes on in Python: from what its adapters have learned, or from its newest checkpoint."""

import contextlib
import io
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from rich.console import Console

from burnish import InputError, PPOConfig, PPOTrainer
from burnish.config import load_train_config
from burnish.errors import NoCheckpointError
from burnish.runs import trust
from burnish.runs.run import Run
from burnish.stages.generate import generate_beside_start
from burnish.stages.stage import STAGES
from failures import make_workplace
from tiny import PROMPTS, count_vowels, tiny_config, tiny_model, tiny_tokenizer

SHORT = ["num_eval_prompts=0", "lr_schedule=constant"]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A finished run of two steps, and one of four that began in the same way."""
    folder = make_workplace(tmp_path_factory.mktemp("from_run"))
    with contextlib.chdir(folder):
        for name, steps in (("two", 2), ("four", 4)):
            config = load_train_config("config.yaml", [*SHORT, f"steps={steps}", f"run_name={name}"])
            STAGES["ppo"].run(config, Console(quiet=True))
    return folder


def weights_of(trainer):
    return torch.cat(
        [p.detach().flatten() for own in trainer.model_trainer.updates.values() for p in own.role.parameters()]
    )


def greedy(trainer, prompts=PROMPTS):
    sampler = type(trainer.generator.sampler)(greedy=True)
    return trainer.generator.generate_sequences(prompts, sampler=sampler)


def saved_model(folder, **changes):
    tiny_model(**changes).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


# ----------------------------------------------------------------------------------------------- runs of a command


def test_a_finished_run_is_there_with_all_that_it_learned(workplace):
    trainer = PPOTrainer.from_run(workplace / "runs" / "two")
    continued = PPOTrainer.from_run(workplace / "runs" / "two", resume=True)
    assert torch.equal(weights_of(trainer), weights_of(continued))
    assert (trainer.step, continued.step) == (0, 2)
    assert trainer.kl_coef == pytest.approx(continued.kl_coef, rel=0.01)  # as it drifted, up to the last step's update
    before = weights_of(trainer)
    history = trainer.train([f"number {n}:" for n in range(8)])
    assert len(history) == 2
    assert not torch.equal(weights_of(trainer), before)


def test_resumed_in_python_it_makes_the_steps_that_the_run_would_have_made(workplace):
    trainer = PPOTrainer.from_run(workplace / "runs" / "two", resume=True, steps=4)
    config = load_train_config(workplace / "config.yaml", SHORT)
    trainer.train(STAGES["ppo"].load(config).train)
    whole = PPOTrainer.from_run(workplace / "runs" / "four", resume=True)
    assert trainer.step == whole.step == 4
    assert torch.equal(weights_of(trainer), weights_of(whole))


def test_resuming_refuses_another_run_and_what_is_not_there(workplace, tmp_path):
    two = workplace / "runs" / "two"
    with pytest.raises(InputError, match=r"started with other settings \(batch_size: 4 -> 8\)"):
        PPOTrainer.from_run(two, resume=True, batch_size=8)
    with pytest.raises(InputError, match=r"base model \(weights\) changed since"):
        PPOTrainer.from_run(two, resume=True, model=tiny_model(seed=5), tokenizer=tiny_tokenizer())
    with pytest.raises(InputError, match=r"unknown key 'learning_rat'; did you mean 'learning_rate'"):
        PPOTrainer.from_run(two, learning_rat=1.0)
    with pytest.raises(InputError, match="is not a run folder"):
        PPOTrainer.from_run(workplace / "runs")
    trainer = PPOTrainer.from_run(two)
    trainer.save(tmp_path / "saved")
    with pytest.raises(NoCheckpointError, match=r"has no checkpoint to continue from; without resume=True"):
        PPOTrainer.from_run(tmp_path / "saved", resume=True)


def test_a_run_of_somebody_else_runs_and_asks_nothing(workplace, tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_STATE", str(tmp_path / "somebody"))
    two = workplace / "runs" / "two"
    with pytest.raises(InputError, match=r"not made by you .*\n  - run .*judge.py.*\n.*call from_run with trust=True"):
        PPOTrainer.from_run(two)
    with pytest.raises(InputError, match=r"\n  - ask the model hub for someone/model\n"):
        PPOTrainer.from_run(two, reward=count_vowels, model_name="someone/model")
    assert PPOTrainer.from_run(two, reward=count_vowels).reward_computer.name == "count_vowels"  # weights are data
    assert PPOTrainer.from_run(two, trust=True).ppo_step(["number 3:"] * 4)["rewards"]
    assert not trust.is_own(two / "config.yaml")


def test_from_run_takes_ppo_runs(workplace):
    run = Run.new(workplace, "an-sft").begin(STAGES["sft"].config(demonstrations="-"))
    with pytest.raises(InputError, match=r"a run of the stage sft, .* PPO starts from this one with PPOConfig\(sft="):
        PPOTrainer.from_run(run.folder)


# ----------------------------------------------------------------------------- models and tokenizers from memory


def test_a_model_from_memory_is_trained_saved_and_asked_again_here_and_by_peft(tmp_path):
    """End to end: the model has no name that anything could load it by."""
    config = PPOConfig(**tiny_config(adapter_scope="sequence").model_dump(exclude={"model_name"}))
    trainer = PPOTrainer(config, count_vowels, tiny_model(), tiny_tokenizer())
    trainer.train(PROMPTS)
    trainer.save(tmp_path / "run")
    pairs, texts = greedy(trainer)

    again = PPOTrainer.from_run(tmp_path / "run", count_vowels, tiny_model(), tiny_tokenizer())
    assert greedy(again)[1] == texts
    assert again.given == trainer.given == {"reward": "count_vowels", "model": "LlamaForCausalLM"}
    beside = PeftModel.from_pretrained(tiny_model(), tmp_path / "run" / "adapters" / "policy").eval()
    prompt, response = pairs.prompt_ids[2][pairs.prompt_mask[2]], pairs["action"][2][pairs.mask[2]]
    with torch.no_grad():
        logits = beside(input_ids=torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
    assert logits.argmax(-1).tolist() == response.tolist()

    for given in ({}, {"reward": count_vowels}, {"model": tiny_model(), "tokenizer": tiny_tokenizer()}):
        with pytest.raises(InputError, match=r"given from Python \(.*from_run\(folder, (reward|model)=...\)"):
            PPOTrainer.from_run(tmp_path / "run", **given)
    with pytest.raises(InputError, match=r"on a model that was given from Python, .*PPOTrainer.from_run"):
        generate_beside_start(Console(quiet=True), str(tmp_path / "run"), PROMPTS, None, False, 0)
    with pytest.raises(InputError, match=r"does not fit this base model"):
        PPOTrainer.from_run(tmp_path / "run", count_vowels, tiny_model(seed=5), tiny_tokenizer())


def test_a_model_that_was_loaded_from_a_folder_is_named_by_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    saved_model(tmp_path / "model")
    model, tokenizer = AutoModelForCausalLM.from_pretrained("model"), AutoTokenizer.from_pretrained("model")
    config = PPOConfig(**tiny_config().model_dump(exclude={"model_name"}))
    trainer = PPOTrainer(config, count_vowels, model, tokenizer)
    trainer.ppo_step(PROMPTS)
    trainer.save("run")
    assert Run(Path("run")).settings["model_name"] == str(tmp_path / "model")
    assert greedy(PPOTrainer.from_run("run", count_vowels))[1] == greedy(trainer)[1]
    console = Console(record=True, file=io.StringIO())
    generate_beside_start(console, "run", [PROMPTS[0]], None, False, 0)
    assert "tuned" in console.export_text()
