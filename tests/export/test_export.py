"""An export says what the run says, by the word of the tool that loads it; or it is not there."""

import json
import re
from types import SimpleNamespace

import pytest
import torch
import yaml
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from typer.testing import CliRunner

from burnish.cli.app import app
from burnish.errors import WrongExportError
from burnish.evaluation.measure import evaluate
from burnish.export.distillation import ReadsPrompts, acting_on
from burnish.export.merged import generation_config
from burnish.export.same_answers import compare
from burnish.export.source import Answer
from burnish.stages import exporting
from runs_to_export import loaded_as_the_card_says, made, told_by, trained
from tiny import PROMPTS, perturb, tiny_model, tiny_tokenizer, tiny_trainer

# ------------------------------------------------------------------------------------------------ peft, transformers


@pytest.mark.parametrize("scope", ["sequence", "response"])
def test_an_adapter_says_in_peft_what_it_says_in_burnish(request, place, tmp_path, monkeypatch, scope):
    run = request.getfixturevalue(f"{scope}_run")
    found = made(run, "adapter", output=str(tmp_path / "adapter"))
    assert found.facts["compared"]["num_equal"] == 8
    assert found.facts["compared"]["largest_gap"] < 1e-3
    assert json.loads((tmp_path / "adapter/export.json").read_text())["verified"] is True
    assert isinstance(loaded_as_the_card_says(found.folder, place, monkeypatch)["model"], PeftModel)


def test_a_merged_model_says_in_transformers_what_the_adapter_says(sequence_run, tmp_path):
    folder = tmp_path / "merged"
    found = made(sequence_run, "merged", output=str(folder))
    assert found.facts["compared"]["num_equal"] == 8
    settings = json.loads((folder / "generation_config.json").read_text())
    assert (settings["do_sample"], settings["max_new_tokens"]) == (True, 8)
    assert "[assistant]" in AutoTokenizer.from_pretrained(folder).chat_template
    assert not list(folder.glob("adapter*"))
    code = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)[1]
    exec(code.replace('"."', repr(str(folder))), {})  # what the card says works


@pytest.mark.parametrize("form", ["adapter", "merged"])
def test_a_bases_penalty_on_repetition_is_no_part_of_what_was_trained(place, tmp_path, monkeypatch, form):
    """transformers applies it to the most likely tokens too; burnish never does."""
    folder = place / "penalised"
    if not folder.exists():
        model = tiny_model()
        model.generation_config.repetition_penalty = 3.0
        model.save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
        trained(place, "penalised", adapter_scope="sequence", model_name=str(folder))
    found = made(place / "runs" / "penalised", form, output=str(tmp_path / form))
    assert found.facts["compared"]["num_equal"] == 8
    if form == "merged":
        assert "repetition_penalty" not in json.loads((found.folder / "generation_config.json").read_text())
    else:
        assert "repetition_penalty=1.0" in (found.folder / "README.md").read_text()


def test_settings_of_a_base_that_mean_nothing_do_not_stop_a_merge_of_sft(tmp_path):
    own = GenerationConfig.from_dict({"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1})
    base = SimpleNamespace(model=SimpleNamespace(generation_config=own), stop_ids=[1, 2])
    source = SimpleNamespace(base=base, drawn_with=None, config=SimpleNamespace(max_new_tokens=5))
    generation_config(source).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "generation_config.json").read_text())
    assert (written["eos_token_id"], written["repetition_penalty"]) == ([1, 2], 1.1)
    assert not {"temperature", "top_p"} & written.keys()


def test_the_coarser_numbers_decide_what_is_rounding():
    source = SimpleNamespace(logprobs=lambda number, tokens: [-1.0] * len(tokens))
    own, theirs = [Answer([5, 6], [-1.0, -1.0])], [Answer([5, 6], [-1.3, -1.0])]
    assert not compare(source, own, theirs, "llama.cpp", ("float32", "f32")).is_right
    assert compare(source, own, theirs, "llama.cpp", ("bfloat16", "f32")).is_right
    assert compare(source, own, theirs, "llama.cpp", ("float32", "q8_0")).is_right


def test_a_prompt_that_cannot_be_asked_is_refused_before_anything_is_taught(place, response_run, monkeypatch, tmp_path):
    def teaches(*_):
        raise AssertionError("it was taught first")

    monkeypatch.setattr(exporting.Pupil, "taught", teaches)
    assert "is empty" in told_by(lambda: made(response_run, "lora", prompts=[" "], output=str(tmp_path / "lora")))


def test_the_base_is_not_touched_by_a_merge(sequence_run, place, tmp_path):
    plain = made(sequence_run, "merged", output=str(tmp_path / "merged")).folder
    merged = AutoModelForCausalLM.from_pretrained(plain).state_dict()
    base = next((place / "cache" / "gguf").glob("base-*"))
    before = AutoModelForCausalLM.from_pretrained(base).state_dict()
    assert merged.keys() == before.keys()
    changed = {name.split(".")[-2] for name in before if not torch.equal(before[name], merged[name])}
    assert changed == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def test_the_lora_that_a_run_began_with_is_tried_as_it_was_exported(place, sequence_run, tmp_path, monkeypatch):
    run = trained(place, "second", sft=str(sequence_run / "adapters/policy"))
    found = made(run, "adapter", output=str(tmp_path / "adapter"))
    assert found.facts["compared"]["num_equal"] == 8
    assert "start/adapter_model.safetensors" in found.as_dict()["files"]
    write = exporting.write_adapter
    monkeypatch.setattr(
        exporting, "write_adapter", lambda source, folder: (write(source, folder), _damage(folder / "start"))
    )
    with pytest.raises(WrongExportError, match="this export is wrong"):
        made(run, "adapter", output=str(tmp_path / "damaged"))


def _damage(adapter):
    weights = load_file(adapter / "adapter_model.safetensors")
    save_file({k: v * 1.5 for k, v in weights.items()}, adapter / "adapter_model.safetensors")


# ------------------------------------------------------------------------------------------------- an ordinary LoRA


def test_a_response_scope_adapter_becomes_an_ordinary_lora_that_can_be_merged(place, tmp_path, monkeypatch):
    """It gets nearer to the trained model by learning, and goes on from there as any LoRA does.

    A random model is a hard pupil: a real one is near before the first update, and takes small steps. This one begins
    more than half as far away as the base is, and 60 updates at a real one's learning rate leave 0.6 of that.
    """
    monkeypatch.setattr("burnish.stages.distilling.LEARNING_RATE", 1e-3)
    monkeypatch.setattr("burnish.stages.distilling.SHARE_LEFT", 0.4)  # of the way from the base
    response_run = trained(place, "gentle", by=0.06)
    found = made(response_run, "lora", output=str(tmp_path / "lora"), updates=60)
    taught = found.facts["distilled"]
    first, *later = [kl for _, kl in taught["history"]]
    assert taught["kl_at_start"] == first
    assert taught["kl"] == min(later)
    assert taught["kl"] < 0.5 * first  # a third was measured; what did not learn would stay at 1
    assert max(later[-2:]) < min(later[:2])  # it goes on falling, and not by a lucky measurement
    assert {"mean", "half_interval_95"} == {*taught["reward_before"]} == {*taught["reward_after"]}
    assert "KL of the trained model to this LoRA" in (tmp_path / "lora/README.md").read_text()
    assert found.facts["compared"]["num_equal"] == 8  # by peft
    assert not json.loads((tmp_path / "lora/adapter_config.json").read_text()).get("alora_invocation_tokens")
    assert not [*(tmp_path / "lora").glob(".*")]
    merged = made(response_run, "merged", output=str(tmp_path / "merged"), lora=str(tmp_path / "lora"))
    assert merged.facts["compared"]["num_equal"] == 8
    assert merged.facts["adapter_scope"] == "sequence"
    assert merged.facts["distilled"]["kl"] == taught["kl"]
    weights = response_run / "adapters/policy/adapter_model.safetensors"
    save_file({k: 0.5 * v for k, v in load_file(weights).items()}, weights)  # as if it were another run's
    told = told_by(lambda: made(response_run, "merged", output=str(tmp_path / "other"), lora=str(tmp_path / "lora")))
    assert "was not made from the adapter of" in told


def test_an_ordinary_lora_reads_the_prompt_and_its_judge_does_not():
    """The reward model, an adapter on the same base, has to judge both as it was trained to."""
    scopes = []

    def reward(prompts, responses):
        scopes.append(trainer.base.scope)
        return [0.0] * len(responses)

    trainer = tiny_trainer(reward)
    perturb(trainer)
    trainer.generator.agree_on_invocation(PROMPTS)
    trained = evaluate(trainer, PROMPTS)
    ordinary = evaluate(trainer, PROMPTS, engine=ReadsPrompts())
    assert set(scopes) == {"response"}
    assert trained.texts != ordinary.texts
    with acting_on(trainer.base, "sequence"):
        assert evaluate(trainer, PROMPTS).texts == ordinary.texts


def test_a_lora_that_the_run_did_not_teach_is_not_exported_as_its_own(response_run, sequence_run, tmp_path):
    other = str(sequence_run / "adapters/policy")
    told = told_by(lambda: made(response_run, "merged", output=str(tmp_path / "merged"), lora=other))
    assert "was not made by `--to lora`" in told
    assert not [*tmp_path.iterdir()]


def test_an_ordinary_lora_that_stays_far_is_not_kept(response_run, tmp_path, monkeypatch):
    monkeypatch.setattr("burnish.stages.distilling.SHARE_LEFT", 1e-6)
    monkeypatch.setattr("burnish.stages.distilling.LEAST_KL", 1e-6)
    with pytest.raises(WrongExportError, match=r"after 1 updates the KL of the trained model to it is \d\.\d+ nats"):
        made(response_run, "lora", output=str(tmp_path / "lora"), updates=1)
    assert not [*tmp_path.iterdir()]


# ------------------------------------------------------------------------------------------------- whole or not at all


def test_a_wrong_export_is_a_failure_and_leaves_nothing(sequence_run, tmp_path, monkeypatch):
    def damaged(source, folder):
        write(source, folder)
        _damage(folder)

    write = exporting.write_adapter
    monkeypatch.setattr(exporting, "write_adapter", damaged)
    with pytest.raises(WrongExportError) as error:
        made(sequence_run, "adapter", output=str(tmp_path / "adapter"))
    assert error.value.exit_code == 8
    assert "The first difference is at token" in str(error.value)
    assert not [*tmp_path.iterdir()]


def test_what_is_there_is_not_written_over(sequence_run, tmp_path):
    (tmp_path / "mine").mkdir()
    told = told_by(lambda: made(sequence_run, "adapter", output=str(tmp_path / "mine")))
    assert told.endswith("mine exists already; choose another --output, or move it away")


@pytest.mark.parametrize(
    ("scope", "form", "more", "told"),
    [
        ("response", "merged", {}, "folded into the weights it would read the prompt too"),
        ("response", "gguf", {"merged": True}, "--to gguf --merged --lora"),
        ("response", "ollama", {}, "nothing tells ollama to begin there"),
        ("sequence", "lora", {}, "is an ordinary LoRA already; use --to adapter"),
        ("sequence", "mergd", {}, "there is no form 'mergd'; did you mean 'merged'?"),
        ("sequence", "gguf", {"gguf_type": "q9"}, "there is no --type q9; there are f32, f16, q8_0"),
        ("sequence", "gguf", {"gguf_type": "q8_0"}, "--type q8_0 is of a whole model, and this export has none"),
        ("sequence", "merged", {"merged": True}, "--merged goes with --to gguf"),
        ("sequence", "merged", {"with_base": True}, "--with-base goes with --to gguf"),
        ("sequence", "gguf", {"with_base": True, "merged": True}, "a merged model has it in it"),
        ("sequence", "adapter", {"lora": "none"}, "none holds no adapter saved by burnish"),
        ("sequence", "ollama", {}, "it knows ChatML"),
    ],
)
def test_what_no_tool_could_use_is_refused_with_the_way_out(request, tmp_path, scope, form, more, told):
    run = request.getfixturevalue(f"{scope}_run")
    assert told in told_by(lambda: made(run, form, output=str(tmp_path / "out"), **more))
    assert not [*tmp_path.iterdir()]


def test_the_command_gives_json_to_a_program(sequence_run, tmp_path):
    given = ["export", str(sequence_run), "--to", "adapter", "--output", str(tmp_path / "a"), "--json"]
    ended = CliRunner().invoke(app, given)
    assert ended.exit_code == 0, ended.output
    told = json.loads(ended.stdout)
    assert told["form"] == "adapter"
    assert told["files"]["adapter_model.safetensors"] > 1000
    assert told["compared"]["is_right"] is True
    assert "peft gives 8 of 8 answers" in ended.stderr


# --------------------------------------------------------------------------------------------------------- the card


def test_a_card_tells_what_was_measured_and_neither_texts_nor_places_nor_secrets(
    sequence_run, place, tmp_path, monkeypatch
):
    monkeypatch.setenv("SOME_API_KEY", "Be brief.")  # as if it had got into a setting
    card = (made(sequence_run, "adapter", output=str(tmp_path / "a")).folder / "README.md").read_text()
    front = yaml.safe_load(card.split("---")[1])
    assert front["library_name"] == "peft"
    assert front["tags"] == ["burnish", "ppo", "lora"]
    for said in (
        "## How to load it",
        "95 % intervals",
        "| reward |",
        "fingerprint of all texts",
        "| training prompts |",
    ):
        assert said in card
    for hidden in (str(place), str(tmp_path), "the fox and the", "Be brief.", "/root", "/home"):
        assert hidden not in card
    for file in (tmp_path / "a").glob("*.json"):
        assert str(place) not in file.read_text()
