"""Data as people have it: JSON and TSV files, other separators, whole conversations."""

import json

import pytest

from burnish import InputError
from burnish.base_setup.tokenizer_setup import PromptEncoder
from burnish.data import (
    Demonstration,
    Preference,
    load_demonstrations,
    load_preferences,
    load_prompts,
    load_scores,
)
from tiny import tiny_tokenizer


def written(tmp_path, name, text):
    file = tmp_path / name
    file.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return file


# ---------------------------------------------------------------------------------------------------------------- JSON


@pytest.mark.parametrize(
    "text",
    [
        '[{"prompt": "a"}, {"prompt": "b"}]',
        '\n[\n  {\n    "prompt": "a"\n  },\n  {"prompt": "b"}\n]\n',
        '{"prompt": "a"}\n{"prompt": "b"}\n',  # JSONL by another name
    ],
)
def test_json_files(tmp_path, text):
    assert load_prompts(written(tmp_path, "p.json", text)).records == ["a", "b"]


def test_every_object_of_a_json_file_has_its_line(tmp_path):
    text = '[\n  {"prompt": "a"},\n  {\n   "prompt": ""\n  },\n  7,\n  {"prompt": "d"}\n]'
    file = written(tmp_path, "p.json", text)
    with pytest.raises(InputError, match=r"2 bad rows") as caught:
        load_prompts(file)
    assert "p.json:3: 'prompt' is empty" in str(caught.value)
    assert "p.json:6: a int, not an object" in str(caught.value)
    good = load_prompts(file, skip_bad=True).records
    assert [(p, p.source) for p in good] == [("a", f"{file}:2"), ("d", f"{file}:7")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"prompt": "a"},\n {"prompt": }]', r"p\.json:2: not valid JSON from here on \(Expecting value\)"),
        ('[{"prompt": "a"},\n {"prompt": "b"}', r"p\.json:2: the list is not closed"),
        ('[{"prompt": "a"}]\n\n[{"prompt": "b"}]', r"p\.json:3: the list has ended, and there is more"),
        ("[" * 100_000, r"p\.json:1: not valid JSON from here on \(nested too deeply\)"),
        ('{"data": [{"prompt": "a"}]}', r"p\.json:1: no key 'prompt'; there is data"),
        ("[]", "holds no prompts"),
        ("", "holds no prompts"),
        ('"text"', r"p\.json:1: a str, not an object"),
    ],
)
def test_json_that_cannot_be_read(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        load_prompts(written(tmp_path, "p.json", text))
    with pytest.raises(InputError):  # where a file ends too early, more than a row is lost
        load_prompts(written(tmp_path, "p.json", text), skip_bad=True)


# --------------------------------------------------------------------------------------------------------- separators


@pytest.mark.parametrize(
    ("name", "separator"), [("p.csv", ","), ("p.csv", ";"), ("p.csv", "\t"), ("p.csv", "|"), ("p.tsv", "\t")]
)
def test_columns_are_separated_as_the_header_is(tmp_path, name, separator):
    quoted = f'"{separator} and, ""more"";\nhere"'
    file = written(tmp_path, name, f"prompt{separator}completion\na, b{separator}c\n" if separator != "," else
                   "prompt,completion\n\"a, b\",c\n")  # fmt: skip
    assert load_demonstrations(file).records == [Demonstration("a, b", "c")]
    file = written(tmp_path, name, f"prompt{separator}completion\n{quoted}{separator}c\nx{separator}y\n")
    first, second = load_demonstrations(file).records
    assert first.prompt == f'{separator} and, "more";\nhere'
    assert second.prompt.source == f"{file}:4"


def test_one_column_needs_no_separator(tmp_path):
    assert load_prompts(written(tmp_path, "p.csv", "prompt\nwhy; oh why\n")).records == ["why; oh why"]
    assert load_prompts(written(tmp_path, "p.tsv", "prompt\na, b; c\n")).records == ["a, b; c"]


@pytest.mark.parametrize(
    ("name", "header", "message"),
    [
        (
            "p.csv",
            "prompt:completion",
            "'prompt:completion'; columns are separated by a comma or semicolon",
        ),
        ("p.csv", "prompt ^ completion", "one column, 'prompt .* completion'"),
        ("p.tsv", "prompt,completion", "one column, 'prompt,completion'; columns are separated by a tab here"),
        ("p.csv", "prompt;note|completion", "may be separated by a semicolon or bar; separate them by commas"),
    ],
)
def test_a_separator_that_is_not_known_is_told(tmp_path, name, header, message):
    with pytest.raises(InputError, match=message):
        load_demonstrations(written(tmp_path, name, f"{header}\na:b\n"))


def test_a_tsv_row_of_another_length_is_named(tmp_path):
    with pytest.raises(InputError, match=r"p\.tsv:3: 3 fields, but the header has 2"):
        load_demonstrations(written(tmp_path, "p.tsv", "prompt\tcompletion\na\tb\na\tb\tc\n"))


# -------------------------------------------------------------------------------------------------------- conversations

ASKED = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
WHOLE = [*ASKED, {"role": "assistant", "content": "Hello"}]


def test_a_conversations_last_turn_is_the_completion(tmp_path):
    (row,) = load_demonstrations(written(tmp_path, "d.jsonl", {"messages": WHOLE})).records
    assert (row.prompt.messages, row.prompt, row.completion) == (ASKED, "system: Be kind.\nuser: Hi", "Hello")
    beside = written(tmp_path, "d.jsonl", {"prompt": "Hi", "messages": WHOLE})  # as some data sets have both
    assert load_demonstrations(beside).records[0].prompt.messages == ASKED
    own = written(tmp_path, "d.jsonl", {"prompt": "p", "completion": "c", "messages": WHOLE})
    assert load_demonstrations(own).records == [Demonstration("p", "c")]
    renamed = written(tmp_path, "d.jsonl", {"dialog": WHOLE})
    assert load_demonstrations(renamed, {"messages": "dialog"}).records[0].completion == "Hello"


def test_a_conversation_reads_as_the_model_will_see_it(tmp_path):
    encoder = PromptEncoder(tiny_tokenizer(), 256, 16, chat_template=True, system_prompt=None)
    (row,) = load_demonstrations(written(tmp_path, "d.jsonl", {"messages": WHOLE})).records
    text = tiny_tokenizer().decode(encoder.encode([row.prompt])[0])
    assert text == "[system]Be kind.<eos>[user]Hi<eos>[assistant]"


def test_a_conversation_as_prompt_gives_its_answer_as_reference(tmp_path):
    (prompt,) = load_prompts(written(tmp_path, "p.jsonl", {"messages": WHOLE})).records
    assert (prompt.messages, prompt.reference) == (ASKED, "Hello")
    (prompt,) = load_prompts(written(tmp_path, "p.jsonl", {"messages": WHOLE, "reference": "Hey"})).records
    assert (prompt.messages, prompt.reference) == (ASKED, "Hey")
    (prompt,) = load_prompts(written(tmp_path, "p.jsonl", {"messages": ASKED})).records
    assert (prompt.messages, prompt.reference) == (ASKED, None)


def test_preferences_and_scores_about_a_conversation(tmp_path):
    rude = {"role": "assistant", "content": "What?"}
    for chosen, rejected in (("Hello", "What?"), (WHOLE[-1], rude), (WHOLE, [*ASKED, rude])):
        row = {"messages": ASKED, "chosen": chosen, "rejected": rejected}
        (preference,) = load_preferences(written(tmp_path, "p.jsonl", row)).records
        assert preference == Preference("system: Be kind.\nuser: Hi", "Hello", "What?")
        assert preference.prompt.messages == ASKED
    (scored,) = load_scores(written(tmp_path, "s.jsonl", {"messages": WHOLE, "score": 3})).records
    assert (scored.prompt.messages, scored.response, scored.score) == (ASKED, "Hello", 3.0)


def test_messages_of_other_making(tmp_path):
    sharegpt = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    (row,) = load_demonstrations(written(tmp_path, "d.jsonl", {"c": sharegpt}), {"messages": "c"}).records
    assert (row.prompt.messages, row.completion) == ([{"role": "user", "content": "Hi"}], "Hello")
    parts = [{"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}, WHOLE[-1]]
    (row,) = load_demonstrations(written(tmp_path, "d.jsonl", {"messages": parts})).records
    assert row.prompt == "Hi"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (ASKED, r"d\.jsonl:1: 'messages' ends in a message of the user, not of the assistant"),
        (WHOLE[-1:], r"d\.jsonl:1: 'messages' is one message; before the assistant's answer there must be"),
        ([*WHOLE, WHOLE[-1]], r"d\.jsonl:1: 'messages' ends in an assistant's message; the assistant speaks next"),
        ("text", r"d\.jsonl:1: 'messages' is not a list of chat messages"),
        ([], r"d\.jsonl:1: 'messages' is not a list of chat messages"),
        ([{"from": "robot", "value": "x"}], r"message 1 of 'messages' has the role 'robot'"),
        ([{"role": "user", "content": [{"type": "image"}]}, WHOLE[-1]], r"'messages: message 1' is of type list"),
    ],
)
def test_conversations_that_cannot_be_used(tmp_path, messages, message):
    with pytest.raises(InputError, match=message):
        load_demonstrations(written(tmp_path, "d.jsonl", {"messages": messages}))
