"""Any peft LoRA is a start: the reference is base + LoRA, the policy begins exactly there, in both scopes."""

import json
import shutil
import warnings
from dataclasses import replace

import pytest
import torch
import yaml
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from burnish import InputError, PPOTrainer, RewardTrainer
from burnish.base_setup.base_setup import BaseSetup, load_model
from burnish.base_setup.merged_lora import merge_lora
from burnish.config import RewardModelConfig, SFTConfig, TrainConfig
from burnish.data import Preference
from burnish.decoder.base_identity import BaseIdentity
from burnish.models.adapter_files import save_to_run
from burnish.models.policy_model import PolicyModel
from burnish.runs.run import Run
from burnish.stages.stage import STAGES
from failures import make_workplace, state_hash
from families import family_model
from tiny import PROMPTS, count_vowels, tiny_config, tiny_model, tiny_tokenizer

SHAPES = {
    "another rank, alpha and modules": {"r": 3, "lora_alpha": 7, "target_modules": ["q_proj", "down_proj"]},
    "rank-stabilised": {"r": 9, "lora_alpha": 5, "use_rslora": True, "target_modules": "all-linear"},
    "one layer": {"r": 4, "target_modules": ["v_proj", "up_proj"], "layers_to_transform": [1]},
    "patterns": {"r": 2, "target_modules": ["q_proj", "o_proj"], "rank_pattern": {"o_proj": 5}},
    "DoRA": {"r": 4, "target_modules": ["k_proj", "gate_proj"], "use_dora": True},
}  # fmt: skip


@pytest.fixture
def base(tmp_path):
    """A model in a folder."""
    tiny_model().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def foreign_lora(folder, seed=0, model=None, config=None, **shape):
    """A LoRA that peft made, trained on nothing in particular."""
    config = config or LoraConfig(task_type="CAUSAL_LM", **shape)
    grafted = get_peft_model(model or tiny_model(), config)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in grafted.named_parameters():
        if "lora_" in name:
            weight.data += torch.randn(weight.shape, generator=generator) * 0.2
    grafted.save_pretrained(folder, save_embedding_layers=False)
    return folder


def config_of(base, lora, **changes):
    untruncated = {"top_k": 0, "top_p": 1.0, "max_new_tokens": 8}
    return tiny_config(**untruncated | {"model_name": str(base), "sft": str(lora)} | changes)


def own_logprobs(model, pairs):
    """Of the responses, by the model's own forward pass over each text alone."""
    rows = []
    for n, length in enumerate(pairs.mask.sum(1).tolist()):
        prompt, response = pairs.prompt_ids[n][pairs.prompt_mask[n]], pairs["action"][n, :length]
        with torch.no_grad():
            logits = model(input_ids=torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
        rows.append(logits.log_softmax(-1).gather(1, response[:, None])[:, 0])
    return torch.cat(rows)


# ---------------------------------------------------------------------------------------------------- exactly there


@pytest.mark.parametrize("scope", ["response", "sequence"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_policy_begins_at_base_plus_lora_as_peft_computes_it(tmp_path, base, monkeypatch, shape, scope):
    """In float64, so that only a difference in what is computed shows, not one in the order of rounding."""
    monkeypatch.setattr("burnish.base_setup.base_setup.load_model", lambda config: load_model(config).double())
    lora = foreign_lora(tmp_path / "lora", **SHAPES[shape])
    trainer = PPOTrainer(config_of(base, lora, adapter_scope=scope, lora_layers=1), count_vowels)
    trainer.generator.agree_on_invocation(PROMPTS)
    pairs, _ = trainer.generator.generate_sequences(PROMPTS, trainer.sampling_generator)
    beside = PeftModel.from_pretrained(load_model(trainer.config).double(), lora).double().eval()
    expected = own_logprobs(beside, pairs)
    for column in ("logprob", "ref_logprob"):
        torch.testing.assert_close(pairs[column][pairs.mask].double(), expected, rtol=0, atol=5e-6)
    bare = own_logprobs(load_model(trainer.config).double(), pairs)
    assert (expected - bare).abs().max() > 0.1  # the LoRA says something
    trained = trainer.ppo_step(PROMPTS)
    assert trained["kl"] == pytest.approx(0.0, abs=1e-5)
    assert trained["first_ratio_error"] < 1e-5


@pytest.mark.parametrize(
    ("family", "scope"), [("gpt2", "response"), ("phi3", "response"), ("qwen3_moe", "response"), ("lfm2", "sequence")]
)
def test_so_it_does_in_families_that_are_built_otherwise(tmp_path, family, scope):
    """Transposed and fused projections, experts, convolutions; walked and called as a whole."""
    family_model(family).save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft's, of transposed weights and of what a pattern does not reach
        lora = foreign_lora(tmp_path / "lora", model=family_model(family), r=3, target_modules="all-linear")
    trainer = PPOTrainer(config_of(tmp_path / "model", lora, adapter_scope=scope), count_vowels)
    trainer.generator.agree_on_invocation(PROMPTS)
    pairs, _ = trainer.generator.generate_sequences(PROMPTS, trainer.sampling_generator)
    beside = PeftModel.from_pretrained(family_model(family), lora).eval()
    torch.testing.assert_close(pairs["logprob"][pairs.mask], own_logprobs(beside, pairs), rtol=0, atol=2e-4)
    assert trainer.ppo_step(PROMPTS)["kl"] == pytest.approx(0.0, abs=1e-5)


def test_in_half_precision_the_start_is_what_pefts_merge_gives(tmp_path, base):
    lora = foreign_lora(tmp_path / "lora", **SHAPES["rank-stabilised"])
    merged = PPOTrainer(config_of(base, lora, dtype="bfloat16"), count_vowels).base.model
    theirs = PeftModel.from_pretrained(load_model(config_of(base, lora, dtype="bfloat16")), lora).merge_and_unload()
    ours = {name.replace(".base_layer.", "."): weight for name, weight in merged.state_dict().items()}
    for name, weight in theirs.state_dict().items():
        assert torch.equal(ours[name], weight), name


def test_what_was_learned_stands_on_the_two_and_says_so(tmp_path, base):
    lora = foreign_lora(tmp_path / "lora", **SHAPES["rank-stabilised"])
    trainer = PPOTrainer(config_of(base, lora, adapter_scope="sequence", learning_rate=0.05), count_vowels)
    trainer.ppo_step(PROMPTS)
    trainer.save(tmp_path / "run")
    pairs, _ = trainer.generator.generate_sequences(PROMPTS, trainer.sampling_generator)
    folder = tmp_path / "run" / "adapters" / "policy"
    stands_on = PeftModel.from_pretrained(load_model(trainer.config), lora).merge_and_unload()
    by_hand = PeftModel.from_pretrained(stands_on, folder).eval()
    expected = own_logprobs(by_hand, pairs)
    torch.testing.assert_close(pairs["logprob"][pairs.mask], expected, rtol=0, atol=5e-5)
    assert (expected - pairs["ref_logprob"][pairs.mask]).abs().max() > 0.01
    said = json.loads((folder / "burnish.json").read_text())["base"]
    assert (said["merged from"], len(said["merged LoRA"])) == (str(lora), 32)
    named = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert named == f"{base} with {lora} merged into it"


def test_the_base_is_known_by_its_own_weights_and_by_what_is_merged(tmp_path, base):
    """By neither's sum, whose last bits depend on the machine."""
    lora = foreign_lora(tmp_path / "lora", **SHAPES["one layer"])
    plain = BaseSetup(tiny_config(model_name=str(base))).base.identity.parts
    both = BaseSetup(config_of(base, lora), start=lora).base.identity.parts
    assert both.keys() - plain.keys() == {"merged LoRA"}
    assert {part: both[part] for part in plain} == plain
    edited = json.loads((lora / "adapter_config.json").read_text()) | {"lora_alpha": 9}
    (lora / "adapter_config.json").write_text(json.dumps(edited))
    assert BaseSetup(config_of(base, lora), start=lora).base.identity.parts["merged LoRA"] != both["merged LoRA"]


# ------------------------------------------------------------------------------------------- burnish's own adapters


def sft_adapter(folder, base, **changes):
    """As `burnish sft` leaves it."""
    config = SFTConfig(demonstrations="-", model_name=str(base), lora_r=2, lora_alpha=6, **changes)
    setup = BaseSetup(config)
    setup.add_adapter("sft")
    role = PolicyModel(setup.base, "sft")
    for n, weight in enumerate(role.parameters()):
        weight.data += torch.randn(weight.shape, generator=torch.Generator().manual_seed(n)) * 0.2
    if setup.base.scope == "response":
        setup.base.act_from(setup.encoder.encode(PROMPTS)[0][-1:])
    save_to_run(Run.new(folder, "sft").begin(config), role)
    return folder / "sft"


def test_an_own_adapter_of_the_same_shape_goes_on_as_one_and_any_that_acts_everywhere_is_merged(tmp_path, base):
    sft = sft_adapter(tmp_path, base, adapter_scope="sequence")
    same = PPOTrainer(config_of(base, sft, lora_r=2, lora_alpha=6, adapter_scope="sequence"), count_vowels)
    assert same.base.identity.merged is None
    assert same.sft_model.adapter == "sft"
    expected = same.generator.generate_sequences(PROMPTS)[0]
    for changes in ({"lora_r": 4, "lora_alpha": 8, "adapter_scope": "sequence"}, {"lora_r": 2, "lora_alpha": 6}):
        other = PPOTrainer(config_of(base, sft, **changes), count_vowels)
        assert other.base.identity.merged.folder == str(sft / "adapters" / "sft")
        other.generator.agree_on_invocation(PROMPTS)
        bare = replace(expected, context=None)
        torch.testing.assert_close(other.policy.logprobs(bare), expected["logprob"], rtol=0, atol=5e-5)


def test_an_own_adapter_on_the_response_needs_its_shape(tmp_path, base):
    sft = sft_adapter(tmp_path, base)
    with pytest.raises(InputError, match=r"has lora_r 2, this config asks for 4; set lora_r as in the run"):
        PPOTrainer(config_of(base, sft), count_vowels)


def test_an_own_adapter_of_another_base_is_not_merged(tmp_path, base):
    sft = sft_adapter(tmp_path, base, adapter_scope="sequence")
    tiny_model(seed=5).save_pretrained(base)
    with pytest.raises(InputError, match="does not fit this base model: it was trained on"):
        PPOTrainer(config_of(base, sft), count_vowels)


# --------------------------------------------------------------------------------------------------- reward models


def test_a_reward_model_stands_on_the_same_two(tmp_path, base):
    lora = foreign_lora(tmp_path / "lora", **SHAPES["one layer"])
    shared = {"model_name": str(base), "sft": str(lora), "lora_r": 4, "lora_alpha": 8}
    config = RewardModelConfig(preferences="-", max_new_tokens=6, num_centring_prompts=2, **shared)
    learner = RewardTrainer(config)
    learner.train([Preference(p, "yes", "no") for p in PROMPTS])
    run = Run.new(tmp_path, "reward").begin(config)
    save_to_run(run, learner.model)
    reward = str(run.folder)
    assert PPOTrainer(config_of(base, lora, reward=reward)).ppo_step(PROMPTS)["kl"] == pytest.approx(0, abs=1e-5)
    with pytest.raises(InputError, match=r"on the base with the LoRA of .* merged into it, and here there is the"):
        PPOTrainer(config_of(base, lora, reward=reward, sft=None))


# -------------------------------------------------------------------------------------------------------- refusals


def edit_config(lora, **changes):
    file = lora / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def edit_weights(lora, change):
    file = lora / "adapter_model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


def as_pickle(lora):
    torch.save(load_file(lora / "adapter_model.safetensors"), lora / "adapter_model.bin")
    (lora / "adapter_model.safetensors").unlink()


def lose_a_tensor(own):
    return dict(sorted(own.items())[1:])


def gain_a_head(own):
    return own | {"base_model.model.lm_head.weight": torch.zeros(258, 32)}


def lose_all_meaning(own):
    return {name: weight * float("nan") for name, weight in own.items()}


def of_a_wider_model(lora):
    foreign_lora(lora, model=tiny_model(intermediate_size=48), target_modules=["down_proj"])


def on_the_head(lora):
    """Whose weights are the embeddings' too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        foreign_lora(lora, target_modules=["lm_head", "q_proj"])


def of_another_kind(lora):
    foreign_lora(lora, config=IA3Config(task_type="CAUSAL_LM"))


# What was done to the LoRA (changes of its config, a change of its tensors or of its files), and what is said of it.
REFUSED = [
    (of_another_kind, r"is no LoRA \(peft_type: IA3\)"),
    ({"peft_type": "PROMPT_TUNING"}, r"is no LoRA \(peft_type: PROMPT_TUNING\)"),
    ({"alora_invocation_tokens": [5]}, r"an activated LoRA that burnish did not make"),
    ({"modules_to_save": ["lm_head"]}, r"brings whole modules of its own \(modules_to_save: \['lm_head'\]\); fold it"),
    ({"bias": "all"}, r"brings biases of its own \(bias: 'all'\); fold it into its base with peft"),
    ({"layer_replication": [[0, 2], [0, 2]]}, r"repeats layers of its base"),
    ({"init_lora_weights": "pissa"}, r"init_lora_weights: pissa, which changes the base's own weights"),
    ({"use_new_thing": True}, r"something that burnish cannot merge exactly \(use_new_thing: True\)"),
    ({"target_modules": ["c_attn"]}, r"does not fit this base model: .*[Tt]arget modules"),
    (lose_a_tensor, r"its file lacks 1 of its tensors \(.*lora_A.weight\). Use the base"),
    (gain_a_head, r"holds 1 that it has no place for \(base_model.model.lm_head.weight\)"),
    (lose_all_meaning, r"holds numbers that are not finite"),
    (of_a_wider_model, r"does not fit this base model: .*size mismatch"),
    (on_the_head, r"says something else when it is merged .*tied embeddings"),
    (as_pickle, r"holds no SFT adapter but adapter_model\.bin"),
    ("adapter_model.safetensors", r"holds no SFT adapter; name the folder of a finished run of"),
    ("adapter_config.json", r"holds no LoRA in peft's format"),
]
OF_TENSORS = (lose_a_tensor, gain_a_head, lose_all_meaning)


def start(config):
    STAGES["ppo"].check(config, None)  # what the files tell is told before torch is there
    PPOTrainer(config, count_vowels)


@pytest.mark.parametrize(("change", "sentence"), REFUSED)
def test_what_cannot_be_merged_exactly_is_refused_with_the_reason(tmp_path, base, change, sentence):
    lora = foreign_lora(tmp_path / "lora", target_modules=["q_proj"])
    if isinstance(change, dict):
        edit_config(lora, **change)
    elif isinstance(change, str):
        (lora / change).unlink()
    elif change in OF_TENSORS:
        edit_weights(lora, change)
    else:
        change(lora)
    for dtype in ("float32", "bfloat16") if change is on_the_head else ("float32",):
        config = TrainConfig(prompts="-", **config_of(base, lora, dtype=dtype).model_dump())
        with pytest.raises(InputError, match=sentence):
            start(config)


def test_a_quantized_base_takes_no_lora(tmp_path):
    lora, model = foreign_lora(tmp_path / "lora", target_modules=["q_proj"]), tiny_model()
    model.hf_quantizer = object()  # as transformers marks it
    with pytest.raises(InputError, match="cannot be merged into a quantized base"):
        merge_lora(model, BaseIdentity(model, tiny_tokenizer()), lora)


def test_a_model_that_is_given_stays_as_it_is(tmp_path, base):
    lora = foreign_lora(tmp_path / "lora", target_modules=["q_proj"])
    model = tiny_model()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with pytest.raises(InputError, match=r"merge it first and leave sft out: model = PeftModel"):
        PPOTrainer(config_of(base, lora), count_vowels, model, tiny_tokenizer())
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    with pytest.raises(InputError, match=r"carries a peft adapter, .* give model.merge_and_unload\(\)"):
        PPOTrainer(tiny_config(), count_vowels, PeftModel.from_pretrained(model, lora), tiny_tokenizer())


# ---------------------------------------------------------------------------------------------------------- a run


def test_a_run_with_a_foreign_lora_is_resumed_judged_and_asked_and_knows_its_lora(fork_server, tmp_path):
    folder = make_workplace(tmp_path)
    lora = foreign_lora(folder / "lora", **SHAPES["rank-stabilised"])
    config = yaml.safe_load((folder / "config.yaml").read_text()) | {"sft": "lora", "steps": 4}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    whole = fork_server.run(folder, "train", "config.yaml", "run_name=whole")
    assert whole.code == 0, whole.text
    assert f"The LoRA of {lora} is merged into the base" in whole.text
    assert f'base = PeftModel.from_pretrained(base, "{lora}").merge_and_unload() # the start' in whole.text
    assert fork_server.run(folder, "train", "config.yaml", "run_name=cut", kill_at=13, where="save").code == -9

    shutil.copytree(lora, folder / "before")
    edit_weights(lora, lambda own: {name: weight * 1.01 for name, weight in own.items()})
    refused = fork_server.run(folder, "resume", "runs/cut")
    assert refused.code == 2
    assert "cannot be resumed: base model (merged LoRA) changed since" in refused.text
    refused = fork_server.run(folder, "generate", "runs/whole", "number 3:")
    assert refused.code == 2
    assert "merged into it, which has changed since" in refused.text
    shutil.rmtree(lora)
    refused = fork_server.run(folder, "generate", "runs/whole", "number 3:")
    assert refused.code == 2
    assert "and here there is the base alone" in refused.text
    (folder / "before").rename(lora)

    assert fork_server.run(folder, "resume", "runs/cut").code == 0
    assert state_hash(folder / "runs" / "cut") == state_hash(folder / "runs" / "whole")
    answered = fork_server.run(folder, "generate", "runs/whole", "number 3:")
    assert (answered.code, "SFT" in answered.out) == (0, True)
    for command in ("eval", "report"):
        outcome = fork_server.run(folder, command, "runs/whole")
        assert outcome.code == 0, outcome.text


def test_all_stages_of_a_pipeline_stand_on_the_same_lora(fork_server, tmp_path):
    folder = make_workplace(tmp_path)
    foreign_lora(folder / "lora", **SHAPES["one layer"])
    rows = [{"prompt": f"question {i}:", "chosen": "yes", "rejected": "no"} for i in range(8)]
    (folder / "preferences.jsonl").write_text("\n".join(map(json.dumps, rows)))
    small = {"batch_size": 4, "num_eval_prompts": 2}
    values = {
        "model": {"model_name": "model", "max_new_tokens": 6, "lora_r": 4},
        "reward_model": {"preferences": "preferences.jsonl", "sft": "lora", "num_centring_prompts": 2} | small,
        "ppo": {"prompts": "prompts.jsonl", "sft": "lora", "steps": 1, "best_of": 1} | small,
    }
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(values))
    refused = fork_server.run(folder, "pipeline", "pipeline.yaml", "reward_model.sft=null", "run_name=one")
    assert refused.code == 2
    assert "differs between sections (reward_model: None, ppo: " in refused.text
    done = fork_server.run(folder, "pipeline", "pipeline.yaml", "run_name=one")
    assert done.code == 0, done.text
    (step,) = Run(folder / "runs" / "one" / "ppo").read_lines("metrics.jsonl")
    assert step["first_ratio_error"] < 1e-4
