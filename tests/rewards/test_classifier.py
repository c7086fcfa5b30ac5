"""Somebody else's reward model: any sequence classifier, from a folder or the hub."""

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from burnish import InputError, PPOTrainer, RewardComputer, TrainConfig
from burnish.config.files import load_config
from burnish.data import Prompt
from burnish.errors import RewardFailedError
from burnish.rewards.classifier import Classifier, ClassifierPart, without_beginning
from burnish.rewards.part import Workshop
from burnish.runs.same_run import fingerprint_of_files
from burnish.stages.reward_test import show_reward
from burnish.stages.trusted import reward_deeds
from tiny import PROMPTS, tiny_config, tiny_model, tiny_tokenizer

LABELS = ["bad", "good", "odd"]
TEXTS = ["Fine.", "A much longer answer than the first one", "", "no"]


def save_classifier(
    folder: Path, num_labels: int = 3, seed: int = 0, pad: bool = True, chat: bool = True, labels: list[str] = LABELS
) -> str:
    """A decoder with a scalar or several outputs, and a tokenizer that writes single bytes."""
    num_labels = min(num_labels, len(labels))
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=258, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=96, initializer_range=0.3, num_labels=num_labels,
        pad_token_id=257 if pad else None, bos_token_id=None, eos_token_id=256,
    )  # fmt: skip
    if num_labels > 1:
        config.id2label, config.label2id = dict(enumerate(labels)), {name: n for n, name in enumerate(labels)}
    LlamaForSequenceClassification(config).save_pretrained(folder)
    tiny_tokenizer(pad=pad, chat=chat).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    return save_classifier(tmp_path_factory.mktemp("three"))


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return save_classifier(tmp_path_factory.mktemp("one"), num_labels=1, chat=False)


def scored(model, prompts, responses, **keys):
    return ClassifierPart(model=model, **keys).make(Workshop())(prompts, responses)


def logits(model: str, text: str) -> torch.Tensor:
    """What the model itself says of one text.  -> [L]"""
    ids = tiny_tokenizer()(text, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        return LlamaForSequenceClassification.from_pretrained(model)(input_ids=torch.tensor([ids])).logits[0]


# --------------------------------------------------------------------------------------------------- what it reads


def test_it_reads_prompt_and_response_as_messages_of_its_own_template(three):
    expected = [logits(three, f"[user]Why?<eos>[assistant]{text}<eos>")[1].item() for text in TEXTS]
    assert scored(three, ["Why?"] * 4, TEXTS, label="good") == pytest.approx(expected, abs=1e-4)


def test_a_chat_is_read_as_the_chat_it_is(three):
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "Why?"}]
    prompt = Prompt("system: be kind\nuser: Why?", messages=messages)
    expected = logits(three, "[system]be kind<eos>[user]Why?<eos>[assistant]So.<eos>")[0].item()
    assert scored(three, [prompt], ["So."], label=0) == pytest.approx([expected], abs=1e-4)


def test_without_a_template_it_reads_one_text(one):
    assert scored(one, ["Why? "], ["So."]) == pytest.approx([logits(one, "Why? So.").item()], abs=1e-4)


def test_it_may_read_the_response_alone(three):
    assert scored(three, ["Why?"], ["So."], label=2, reads="response") == pytest.approx(
        [logits(three, "So.")[2].item()], abs=1e-4
    )


def test_a_pair_is_two_texts_to_an_encoder(tmp_path):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=258, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, num_labels=1,
        initializer_range=0.3,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    tiny_tokenizer(chat=False).save_pretrained(tmp_path)
    seen = []
    judge = Classifier(ClassifierPart(model=str(tmp_path), reads="pair"))
    judge.tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]  # as BERT's own has them
    judge.model.register_forward_pre_hook(lambda module, args, given: seen.append(given), with_kwargs=True)
    both = judge(["Why?", "What is it?"], ["So.", "A thing"])
    assert seen[0]["token_type_ids"].tolist() == [[0] * 4 + [1] * 3 + [0] * 11, [0] * 11 + [1] * 7]
    alone = [*judge(["Why?"], ["So."]), *judge(["What is it?"], ["A thing"])]
    assert both == pytest.approx(alone, abs=1e-4)  # it reads in both directions: padding must be masked


def test_batches_and_their_order_change_nothing(three):
    prompts = [f"Question {n}?" * (n + 1) for n in range(4)]
    alone = [scored(three, [p], [r], label="good")[0] for p, r in zip(prompts, TEXTS, strict=True)]
    for size in (1, 2, 3, 16):
        assert scored(three, prompts, TEXTS, label="good", batch_size=size) == pytest.approx(alone, abs=1e-4)


def test_without_a_pad_token_texts_are_read_one_by_one(tmp_path):
    model = save_classifier(tmp_path, pad=False)
    expected = [logits(model, f"[user]Why?<eos>[assistant]{text}<eos>")[1].item() for text in TEXTS]
    assert scored(model, ["Why?"] * 4, TEXTS, label="good") == pytest.approx(expected, abs=1e-4)


# -------------------------------------------------------------------------------------- what is cut, and what counts


def test_a_long_prompt_loses_its_beginning(three):
    frame = len("[user]") + 1 + len("[assistant]So.") + 1  # the template's letters and two stop tokens
    kept = "x" * (96 - frame - 4) + "END?"
    expected = logits(three, f"[user]{kept}<eos>[assistant]So.<eos>")[1].item()
    assert scored(three, ["x" * 200 + "END?"], ["So."], label=1) == pytest.approx([expected], abs=1e-4)
    shorter = logits(three, "[user]D?<eos>[assistant]So.<eos>")[1].item()
    assert scored(three, ["x" * 200 + "END?"], ["So."], label=1, max_length=frame + 2) == pytest.approx(
        [shorter], abs=1e-4
    )


def test_a_prompt_is_cut_between_characters(three):
    """A tokenizer of bytes makes three of half a character: cutting tokens might never end."""
    frame = len("[user]") + 1 + len("[assistant]So.") + 1
    expected = logits(three, f"[user]{'é' * 9}<eos>[assistant]So.<eos>")[1].item()
    cut = scored(three, ["é" * 10], ["So."], label=1, max_length=frame + 19)
    assert cut == pytest.approx([expected], abs=1e-4)


@pytest.mark.parametrize(
    ("room", "kept"),
    [
        (99, [("system", "be kind"), ("user", "Why?"), ("assistant", "Oh"), ("user", "Go on")]),
        (9, [("user", "y?"), ("assistant", "Oh"), ("user", "Go on")]),
        (7, [("user", ""), ("assistant", "Oh"), ("user", "Go on")]),
        (6, [("user", ""), ("assistant", "h"), ("user", "Go on")]),
        (5, [("user", "Go on")]),
        (0, [("user", "")]),
    ],
)
def test_a_chat_that_is_cut_is_still_one_that_templates_accept(room, kept):
    chat = [("system", "be kind"), ("user", "Why?"), ("assistant", "Oh"), ("user", "Go on")]
    whole = [{"role": role, "content": content} for role, content in chat]
    number = max(0, sum(len(content) for _, content in chat) - room)
    assert [(m["role"], m["content"]) for m in without_beginning(whole, number)] == kept


def test_positions_that_are_for_padding_hold_no_token(tmp_path):
    """RoBERTa counts from behind its pad token's number: of 40 positions it reads 38."""
    config = RobertaConfig(
        vocab_size=258, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, num_labels=1,
        max_position_embeddings=40, pad_token_id=1,
    )  # fmt: skip
    RobertaForSequenceClassification(config).save_pretrained(tmp_path)
    tiny_tokenizer(chat=False).save_pretrained(tmp_path)
    judge = Classifier(ClassifierPart(model=str(tmp_path)))
    assert judge.max_length == 38
    assert len(judge.encode("x" * 99, "So.")["input_ids"]) == 38
    judge(["x" * 99], ["So."])


def test_a_response_that_does_not_fit_is_left_out(three):
    part = ClassifierPart(model=three, label=1).make(Workshop())
    with pytest.warns(UserWarning, match="more than the 96 tokens"):
        scores = RewardComputer(part).compute_rewards(["p"] * 3, ["a", "y" * 100, "b"])
    assert scores[1] is None
    assert scores[0] != scores[2]
    with pytest.raises(RewardFailedError, match="96 tokens"):
        part(["p"], ["y" * 100])


def test_probabilities(one, three, tmp_path):
    outputs = logits(three, "[user]p<eos>[assistant]r<eos>")
    assert scored(three, ["p"], ["r"], label="odd", score="probability") == pytest.approx(
        [outputs.softmax(0)[2].item()], abs=1e-5
    )
    assert scored(one, ["p"], ["r"], score="probability") == pytest.approx(
        logits(one, "pr").sigmoid().tolist(), abs=1e-5
    )
    config = json.loads((Path(three) / "config.json").read_text()) | {"problem_type": "multi_label_classification"}
    for file in Path(three).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert scored(str(tmp_path), ["p"], ["r"], label="odd", score="probability") == pytest.approx(
        [outputs.sigmoid()[2].item()], abs=1e-5
    )


def test_number_format_and_device_are_its_own(one):
    judge = Classifier(ClassifierPart(model=one, dtype="bfloat16", device="cpu"))
    assert judge.model.dtype == torch.bfloat16
    assert judge(["p"], ["r"]) == pytest.approx(logits(one, "pr").tolist(), abs=0.1)
    with pytest.raises(InputError, match="device 'abacus' cannot be used here"):
        Classifier(ClassifierPart(model=one, device="abacus"))


# ----------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, r"several outputs; say which counts, by name or number: 0 \(bad\), 1 \(good\), 2 \(odd\)"),
        ({"label": "god"}, "no label 'god'.*did you mean 'good'"),
        ({"label": 3}, "no label 3"),
    ],
)
def test_a_label_must_be_named_and_there(three, keys, message):
    part = ClassifierPart(model=three, **keys)
    with pytest.raises(InputError, match=message):
        part.check(Workshop())  # before anything is loaded
    with pytest.raises(InputError, match=message):
        part.make(Workshop())


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(InputError, match=r"folder \./nowhere does not exist"):
        ClassifierPart(model="./nowhere").check(Workshop())
    with pytest.raises(InputError, match=r"has no config\.json"):
        ClassifierPart(model=str(tmp_path)).check(Workshop())


def test_a_language_model_is_no_classifier(tmp_path):
    """Its head would be random numbers."""
    tiny_model().save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"is not a classifier: its files lack score\.weight"):
        ClassifierPart(model=str(tmp_path), label=0).make(Workshop())


def test_code_from_a_folder_is_not_run(three, tmp_path):
    for file in Path(three).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoModelForSequenceClassification": "mine.Mine"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Mine: pass\n")
    with pytest.raises(InputError, match="cannot load the classifier"):
        ClassifierPart(model=str(tmp_path), label=0).make(Workshop())
    assert not (tmp_path / "ran").exists()


# ------------------------------------------------------------------------------------------------ its place in a run


def test_ppo_learns_from_it_and_the_verdict_may_ask_it(three, tmp_path):
    config = tiny_config(reward=[{"kind": "classifier", "model": three, "label": "good"}])
    results = PPOTrainer(config, None, tiny_model(), tiny_tokenizer()).ppo_step(PROMPTS)
    expected = scored(three, PROMPTS, results["generated_texts"], label="good")
    assert list(results["rewards"]) == pytest.approx(expected, abs=1e-4)
    assert set(results["reward_parts"]) == {"classifier"}
    second = TrainConfig(prompts="p.txt", eval_reward=[{"kind": "classifier", "model": three, "label": 1}])
    assert second.eval_reward_parts[0].model == three


def test_a_changed_folder_is_another_reward(tmp_path):
    part = ClassifierPart(model=save_classifier(tmp_path / "judge"), label=0)
    before = fingerprint_of_files(part.files())
    save_classifier(tmp_path / "judge", seed=1)
    assert fingerprint_of_files(part.files()) != before
    before = fingerprint_of_files(part.files())
    template = tmp_path / "judge" / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    assert fingerprint_of_files(part.files()) != before


def test_a_stranger_has_to_ask_for_it(three):
    config = TrainConfig(
        prompts="p.txt",
        reward=[{"kind": "classifier", "model": three, "label": 0}],
        eval_reward=[{"kind": "classifier", "model": "some/judge"}],
    )
    assert list(reward_deeds(config)) == [f"read the model in {three}", "ask the model hub for some/judge"]


def test_a_relative_folder_starts_at_the_configs_own(tmp_path):
    save_classifier(tmp_path / "judge")
    (tmp_path / "config.yaml").write_text(
        "prompts: p.txt\nreward:\n- {kind: classifier, model: judge, label: good}\n"
        "eval_reward:\n- {kind: classifier, model: org/judge}\n"
    )
    config = load_config(TrainConfig, tmp_path / "config.yaml")
    assert config.reward_parts[0].model == str(tmp_path / "judge")
    assert config.eval_reward_parts[0].model == "org/judge"


def test_reward_test_shows_its_score(three, capsys):
    config = TrainConfig(prompts="p.txt", reward=[{"kind": "classifier", "model": three, "label": "good"}])
    show_reward(Console(width=100), config, "Why?", "So.")
    expected = logits(three, "[user]Why?<eos>[assistant]So.<eos>")[1].item()
    assert f"{expected:.3f}" in capsys.readouterr().out
