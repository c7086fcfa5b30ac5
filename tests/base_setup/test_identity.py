"""A run knows its base model, its adapters and its rewards, and takes nothing else for them."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig

from burnish import InputError, PPOTrainer, RewardModel
from burnish.base_setup.base_setup import BaseSetup, load_model, load_tokenizer
from burnish.base_setup.kept_fingerprints import KeptFingerprint
from burnish.data import Split
from burnish.decoder.base_identity import BaseIdentity, adapter_of
from burnish.decoder.decoder import Decoder
from burnish.decoder.key_values import PromptCache
from burnish.decoder.shared_base import SharedBase
from burnish.models.adapter_files import load_adapter, save_to_run
from burnish.rewards.python import imported_files
from burnish.runs.run import Run
from burnish.sa_pairs.padding import left_padded, right_padded
from burnish.sa_pairs.table import SAPairs
from burnish.stages.identity import identity_of
from failures import make_workplace, state_hash
from tiny import PROMPTS, changes, count_vowels, perturb, tiny_config, tiny_model, tiny_tokenizer, tiny_trainer


def saved_model(folder, layers=2, seed=0):
    tiny_model(layers=layers, seed=seed).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def saved_reward_model(folder, model=None, **settings):
    """A reward model as `burnish reward` leaves it."""
    setup = BaseSetup(tiny_config(**settings), model or tiny_model(), tiny_tokenizer())
    setup.add_adapter("reward")
    reward = RewardModel(setup.base, setup.encoder.encode)
    reward.mark_trained()
    setup.base.invocation = setup.encoder.header or setup.encoder.encode(PROMPTS)[0][-1:]
    return save_to_run(Run.new(folder, "reward").begin(tiny_config(**settings)), reward)


def with_reward(folder, model=None, **settings):
    return PPOTrainer(tiny_config(reward=str(folder), **settings), None, model or tiny_model(), tiny_tokenizer())


def edit_tensors(file, change):
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


# ------------------------------------------------------------------------------------------------ missing tensors


def test_a_base_file_that_lacks_layers_is_refused(tmp_path):
    folder = saved_model(tmp_path / "model", layers=4)

    def lose_the_upper_half(tensors):
        for name in [n for n in tensors if "layers.2." in n or "layers.3." in n]:
            del tensors[name]

    edit_tensors(folder / "model.safetensors", lose_the_upper_half)
    with pytest.raises(InputError, match=r"lacks 18 of its tensors \(model.layers.2.input_layernorm.weight, .*Get the"):
        load_model(tiny_config(model_name=str(folder)))


def test_a_base_file_with_a_foreign_tensor_is_refused_and_tied_heads_are_not_missing(tmp_path):
    folder = saved_model(tmp_path / "model")
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    load_model(tiny_config(model_name=str(folder)))
    edit_tensors(folder / "model.safetensors", lambda tensors: tensors.update(foreign=torch.zeros(2)))
    with pytest.raises(InputError, match=r"holds 1 that it has no place for \(foreign\)"):
        load_model(tiny_config(model_name=str(folder)))


def test_a_base_s_config_is_read_once(tmp_path, monkeypatch):
    folder = saved_model(tmp_path / "model")
    read, from_pretrained = [], AutoConfig.from_pretrained
    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda *a, **k: (read.append(a), from_pretrained(*a, **k))[1])
    assert load_model(tiny_config(model_name=str(folder), dtype="bfloat16")).dtype == torch.bfloat16
    assert len(read) == 1


def test_an_adapter_file_must_hold_its_own_tensors_and_no_others(tmp_path):
    trainer = tiny_trainer()
    folder = save_to_run(Run.new(tmp_path, "run").begin(trainer.config), trainer.policy)
    file = folder / "adapter_model.safetensors"
    name = sorted(load_file(file))[3]
    edit_tensors(file, lambda tensors: tensors.update(foreign=torch.zeros(2)))
    with pytest.raises(InputError, match=r"holds 1 that it has no place for \(foreign\)"):
        load_adapter(tiny_trainer().base, "policy", folder)
    edit_tensors(file, lambda tensors: (tensors.pop("foreign"), tensors.pop(name)))
    with pytest.raises(InputError, match=rf"lacks 1 of its tensors \({name}\)"):
        load_adapter(tiny_trainer().base, "policy", folder)


def test_a_head_file_must_hold_its_own_tensors_and_no_others(tmp_path):
    folder = saved_reward_model(tmp_path)
    edit_tensors(folder / "head.safetensors", lambda tensors: tensors.update(foreign=torch.zeros(2)))
    with pytest.raises(InputError, match=r"holds 1 that it has no place for \(foreign\)"):
        with_reward(folder)
    edit_tensors(folder / "head.safetensors", lambda tensors: (tensors.pop("foreign"), tensors.pop("bias")))
    with pytest.raises(InputError, match=r"head.safetensors .* lacks 1 of its tensors \(bias\)"):
        with_reward(folder)


# --------------------------------------------------------------------------------------------------- another base


@pytest.mark.parametrize("role", ["reward", "value", "sft"])
def test_an_adapter_trained_on_another_base_is_refused(tmp_path, role):
    folder = saved_reward_model(tmp_path)
    settings = {"reward": {}, "value": {"value_from_reward": True}, "sft": {"sft": str(folder)}}[role]

    def trainer_on(model):
        if role == "sft":
            return PPOTrainer(tiny_config(**settings), count_vowels, model, tiny_tokenizer())
        return with_reward(folder, model, **settings)

    trainer_on(tiny_model())
    almost = tiny_model()
    with torch.no_grad():
        almost.model.layers[1].mlp.up_proj.weight[3, 7] += 1e-6
    with pytest.raises(InputError, match="does not fit this base model: it was trained on LlamaForCausalLM, whose"):
        trainer_on(almost)


def test_an_adapter_of_an_older_version_is_accepted_with_a_word(tmp_path):
    folder = saved_reward_model(tmp_path)
    facts = json.loads((folder / "burnish.json").read_text())
    del facts["base"]
    (folder / "burnish.json").write_text(json.dumps(facts))
    with pytest.warns(UserWarning, match="saved by an older version of burnish, which did not write down its base"):
        with_reward(folder, tiny_model(seed=3))


def test_the_command_line_says_so_too(fork_server, tmp_path):
    folder = make_workplace(tmp_path)
    trainer = tiny_trainer()
    trainer.generator.agree_on_invocation(PROMPTS)
    adapter = save_to_run(Run.new(folder, "old").begin(trainer.config), trainer.policy)
    facts = json.loads((adapter / "burnish.json").read_text())
    (adapter / "burnish.json").write_text(json.dumps({k: v for k, v in facts.items() if k != "base"}))
    rows = [{"prompt": f"number {i}:", "chosen": "yes", "rejected": "no"} for i in range(6)]
    (folder / "preferences.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = "model_name: model\nlora_r: 4\nlora_alpha: 8\nmax_new_tokens: 6\nbatch_size: 2\nnum_eval_prompts: 2\n"
    (folder / "reward.yaml").write_text(f"{settings}preferences: preferences.jsonl\nsft: old/adapters/policy\n")
    outcome = fork_server.run(folder, "reward", "reward.yaml", "run_name=judge")
    assert outcome.code == 0, outcome.text
    assert "warning: the adapter in" in outcome.text
    assert "was saved by an older version of burnish" in outcome.text


def test_a_base_in_another_number_format_is_told_as_it_cannot_be_compared(tmp_path):
    folder = saved_reward_model(tmp_path)
    with pytest.warns(UserWarning, match=r"another number format \(float32, here bfloat16"):
        with_reward(folder, tiny_model().bfloat16())


@pytest.mark.parametrize("here", [{"system_prompt": "be rude"}, {"system_prompt": None}, {"chat_template": False}])
def test_a_reward_model_reads_prompts_as_it_did_in_training_or_not_at_all(tmp_path, here):
    trained_with = {"chat_template": True, "system_prompt": "be kind"}
    folder = saved_reward_model(tmp_path, **trained_with)
    with_reward(folder, **trained_with)
    changed = {**trained_with, **here} if "system_prompt" in here else here
    with pytest.raises(InputError, match=r"was trained with .*set them as in the run that made it"):
        with_reward(folder, **changed)


def test_a_reward_model_is_refused_behind_another_template(tmp_path):
    folder = saved_reward_model(tmp_path, chat_template=True)
    other = tiny_tokenizer()
    other.chat_template = other.chat_template.replace("[{{ m['role'] }}]", "<{{ m['role'] }}>")
    config = tiny_config(reward=str(folder), chat_template=True)
    with pytest.raises(InputError, match="was trained with another chat template"):
        PPOTrainer(config, None, tiny_model(), other)


# ------------------------------------------------------------------------------------------------ the base's parts


def test_a_base_is_the_same_from_a_folder_and_ready_made_bare_and_with_adapters(tmp_path):
    folder = saved_model(tmp_path / "model")
    loaded = PPOTrainer(tiny_config(model_name=str(folder)), count_vowels)  # its adapters are grafted by now
    assert loaded.base.identity.parts == BaseIdentity(tiny_model(), tiny_tokenizer()).parts
    perturb(loaded)
    assert BaseIdentity(loaded.base.model, tiny_tokenizer()).parts == loaded.base.identity.parts


def test_every_weight_counts_whatever_its_name():
    def identity(change):
        model = tiny_model()
        model.model.value = nn.Linear(3, 3)  # the name of an adapter, too
        with torch.no_grad():
            model.model.value.weight.fill_(change)
        trainer = PPOTrainer(tiny_config(), count_vowels, model, tiny_tokenizer())
        return identity_of(trainer.base, [trainer.policy, trainer.value_model], Split([], []))

    assert changes(identity(1.0), identity(1.0)) == []
    with pytest.raises(InputError, match=r"base model \(weights\) changed since"):
        changes(identity(1.0), identity(1.5))


def test_a_weight_belongs_to_an_adapter_by_both_marks():
    assert adapter_of("model.layers.0.attention.value.lora_A.policy.weight") == "policy"
    assert adapter_of("model.layers.0.attention.value.weight") is None
    trainer = tiny_trainer()
    assert len(trainer.base.adapter_parameters("policy")) == 2 * 7 * 2


def test_how_a_batch_was_padded_makes_no_other_tokenizer():
    tokenizer = tiny_tokenizer()
    before = BaseIdentity(tiny_model(), tokenizer).tokenizer
    tokenizer(["a", "bcd"], padding=True, truncation=True, max_length=2)
    assert BaseIdentity(tiny_model(), tokenizer).tokenizer == before
    tokenizer.add_tokens(["new"])
    assert BaseIdentity(tiny_model(), tokenizer).tokenizer != before


def change_a_weight(model):
    def nudge(tensors):
        tensors["model.layers.1.mlp.down_proj.weight"][17, 43] += 1e-6

    edit_tensors(model / "model.safetensors", nudge)


def change_the_rope(model):
    config = json.loads((model / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 20000.0
    (model / "config.json").write_text(json.dumps(config))


def change_the_tokenizer(model):
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "Lowercase"}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))


def change_the_template(model):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "another " + tokenizer.chat_template
    tokenizer.save_pretrained(model)


CHANGES = {
    "weights": change_a_weight,
    "model config": change_the_rope,
    "tokenizer": change_the_tokenizer,
    "chat template": change_the_template,
}


def test_what_changed_in_the_base_between_kill_and_resume_is_refused_by_name(fork_server, tmp_path):
    folder = make_workplace(tmp_path)
    outcome = fork_server.run(folder, "train", "config.yaml", "run_name=run", kill_at=13, where="save")
    assert outcome.code == -9
    for part, change in CHANGES.items():
        shutil.copytree(folder / "model", folder / "before")
        change(folder / "model")
        outcome = fork_server.run(folder, "resume", "runs/run")
        assert outcome.code == 2, (part, outcome.text)
        assert f"cannot be resumed: base model ({part}) changed since" in outcome.text
        shutil.rmtree(folder / "model")
        (folder / "before").rename(folder / "model")
    assert fork_server.run(folder, "resume", "runs/run").code == 0


def test_weights_are_hashed_once_for_the_same_files(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("burnish.base_setup.kept_fingerprints.SETTLED_SECONDS", -1e9)
    folder = saved_model(tmp_path / "model")
    calls = []

    def fingerprint(dtype="float32", change=None):
        def compute():
            calls.append(1)
            return f"{len(calls):032x}"

        kept = KeptFingerprint(lambda: folder, dtype)
        if change:
            change()
        kept.loaded()
        return int(kept(compute), 16)

    assert [fingerprint(), fingerprint(), fingerprint("bfloat16"), fingerprint()] == [1, 1, 2, 1]
    file = folder / "model.safetensors"
    times, content = file.stat(), bytearray(file.read_bytes())
    content[-1] ^= 1
    with file.open("r+b") as same_file:
        same_file.write(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # as if nothing had happened
    assert fingerprint() == 3
    assert fingerprint(change=lambda: os.utime(file)) == 4  # changed while it was read: not to be kept
    assert fingerprint() == 5
    for kept in (tmp_path / "cache" / "fingerprints").iterdir():
        kept.write_text("damaged")
    assert fingerprint() == 6


def test_files_that_changed_just_now_are_hashed_again(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    kept = KeptFingerprint(lambda: saved_model(tmp_path / "model"), "float32")
    assert kept(lambda: "0" * 32) == "0" * 32
    assert not (tmp_path / "cache").exists()


# ------------------------------------------------------------------------------------------------------- one base


def test_what_one_base_has_read_serves_no_other():
    read = PromptCache(2**20)
    first, same, other = (SharedBase(tiny_model(seed=seed), tiny_tokenizer()) for seed in (0, 0, 1))
    first.prompt_cache = read
    same.prompt_cache = read
    with pytest.raises(InputError, match="cannot serve LlamaForCausalLM: the two are different base models"):
        other.prompt_cache = read
    with pytest.raises(InputError, match="different base models"):
        other.prompt_cache = same.prompt_cache
    turned = SharedBase(tiny_model(rope_parameters={"rope_type": "default", "rope_theta": 2e4}), tiny_tokenizer())
    with pytest.raises(InputError, match="different base models"):
        turned.prompt_cache = read


def test_memory_that_runs_out_in_the_first_look_at_a_model_is_told_as_that(monkeypatch):
    def no_memory(*_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(Decoder, "run_layers", no_memory)
    with pytest.raises(RuntimeError, match="allocate memory"):
        SharedBase(tiny_model(), tiny_tokenizer())


# -------------------------------------------------------------------------------------------------------- rewards


def test_a_resumed_run_with_a_learned_second_reward_ends_in_the_same_state(fork_server, tmp_path):
    folder = make_workplace(tmp_path)
    config = tiny_config(model_name=str(folder / "model"))
    model, tokenizer = load_model(config), load_tokenizer(config)
    setup = BaseSetup(tiny_config(lora_alpha=32), model, tokenizer)
    setup.add_adapter("reward")
    reward = RewardModel(setup.base, setup.encoder.encode)
    setup.base.invocation = tokenizer(":")["input_ids"]
    save_to_run(Run.new(folder, "judge").begin(tiny_config()), reward)
    second = "eval_reward=[{kind: model, path: judge}]"
    whole = fork_server.run(folder, "train", "config.yaml", "run_name=whole", second)
    assert whole.code == 0, whole.text
    outcome = fork_server.run(folder, "train", "config.yaml", "run_name=hurt", second, kill_at=13, where="save")
    assert outcome.code == -9, outcome.text
    outcome = fork_server.run(folder, "resume", "runs/hurt")
    assert outcome.code == 0, outcome.text
    assert state_hash(folder / "runs" / "hurt") == state_hash(folder / "runs" / "whole")


def test_a_reward_model_reads_every_ending_as_the_one_it_was_trained_on():
    model = tiny_model()
    model.generation_config.eos_token_id = [65, 256]  # two ways to stop; the tokenizer's own is 256
    setup = BaseSetup(tiny_config(), model, tiny_tokenizer())
    setup.add_adapter("reward")
    reward = RewardModel(setup.base, setup.encoder.encode)
    reward.mark_trained()
    assert (setup.base.stop_ids, setup.base.stop_id) == ([65, 256], 256)
    prompts = setup.encoder.encode(PROMPTS[:3])
    answer = setup.base.tokenizer("yes")["input_ids"]
    prompt_ids, prompt_mask = left_padded(prompts)
    action, mask = right_padded([[*answer, 65], [*answer, 256], answer])  # the last one was cut off
    zeros = torch.zeros(mask.shape)
    columns = {"action": action, "logprob_policy": zeros, "logprob_ref": zeros, "entropy": zeros}
    pairs = SAPairs(mask, columns, prompt_ids=prompt_ids, prompt_mask=prompt_mask)
    scores = reward.score(pairs).tolist()
    with torch.no_grad():
        expected = reward.score(SAPairs.of_tokens(prompts, [[*answer, 256], [*answer, 256], answer])).tolist()
    assert scores == pytest.approx(expected, abs=1e-6)
    assert action[0, len(answer)] == 65  # what was said stays what was said


def test_the_files_of_a_reward_are_all_that_it_imports_from_its_folder(tmp_path):
    (tmp_path / "tools" / "deep").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    files = {
        "judge.py": "import json, helper\nfrom tools import words\ndef f():\n    import late\n",
        "helper.py": "import judge, helper\nfrom os import path\n",  # in a circle
        "late.py": "this is no Python",
        "unused.py": "",
        "words.py": "",  # another one than tools.words
        "tools/__init__.py": "",
        "tools/words.py": "from . import more\nfrom .deep.down import x\n",
        "tools/more.py": "from ..helper import y\n",
        "tools/unused.py": "",
        "tools/deep/down.py": "from .. import other\n",  # in a folder without __init__.py
        "tools/other.py": "raise SystemExit('nothing here is run')\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = [str(f.relative_to(tmp_path)) for f in imported_files(tmp_path / "judge.py")]
    used = {"helper.py", "late.py", "tools/__init__.py", "tools/words.py", "tools/more.py", "tools/deep/down.py"}
    assert found[0] == "judge.py"
    assert set(found[1:]) == used | {"tools/other.py"}


def test_a_changed_module_of_the_reward_is_told_and_the_start_measured_anew(fork_server, tmp_path):
    folder = make_workplace(tmp_path)
    (folder / "judge.py").write_text(
        "from parts.scale import scaled\ndef score(p, responses):\n    return scaled(responses)\n"
    )
    (folder / "parts").mkdir()
    scale = "def scaled(responses):\n    return [sum(map(ord, r)) % 10 / 10 for r in responses]\n"
    (folder / "parts" / "scale.py").write_text(scale)
    outcome = fork_server.run(folder, "train", "config.yaml", "run_name=run", kill_at=13, where="save")
    assert outcome.code == -9, outcome.text
    (folder / "parts" / "scale.py").write_text(scale.replace("/ 10", "* 10.0"))
    outcome = fork_server.run(folder, "resume", "runs/run")
    assert outcome.code == 0, outcome.text
    assert "Changed: what the reward's files hold." in outcome.text
    start, result = (json.loads((folder / "runs" / "run" / n).read_text()) for n in ("start.json", "result.json"))
    assert max(start["evaluation"]["reward"]) > 1
    assert result["before"]["reward"]["mean"] == pytest.approx(np.mean(start["evaluation"]["reward"]))


# ----------------------------------------------------------------------------------------- adapters beyond burnish


def test_peft_does_not_load_an_adapter_whose_beginning_it_cannot_know(tmp_path):
    trainer = tiny_trainer()
    perturb(trainer)
    with pytest.warns(UserWarning, match="share no ending"):
        trainer.generator.agree_on_invocation(["one a", "two b"])
    folder = save_to_run(Run.new(tmp_path, "run").begin(trainer.config), trainer.policy)
    with pytest.raises(ValueError, match=r"Can't find 'adapter_config.json'"):
        PeftModel.from_pretrained(tiny_model(), str(folder))
    for _ in range(2):
        other = tiny_trainer()
        load_adapter(other.base, "policy", folder)
        ours, theirs = other.policy.parameters(), trainer.policy.parameters()
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        own = folder / "adapter_config.only-for-burnish.json"
        own.rename(folder / "adapter_config.json") if own.exists() else None  # as older versions saved it
