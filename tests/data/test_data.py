"""Data in: bad rows are named by file and line, splits go by prompt, and bundled texts are what the docs say."""

import csv
import json
import re
import time
import warnings

import pytest

from burnish import InputError
from burnish.config import SFTConfig
from burnish.data import (
    Demonstration,
    Preference,
    Scored,
    Split,
    bundled_demonstrations,
    bundled_preferences,
    bundled_sentiment,
    bundled_tldr,
    data_summary,
    load_demonstrations,
    load_preferences,
    load_prompts,
    load_scores,
    load_split,
    refuse_overlap,
    split_by_prompt,
)
from burnish.rewards.words import words
from burnish.supervised.reward_report import bag_of_words_accuracy


def jsonl(tmp_path, *lines, name="p.jsonl"):
    file = tmp_path / name
    texts = [line if isinstance(line, str | bytes) else json.dumps(line) for line in lines]
    file.write_bytes(b"\n".join(t if isinstance(t, bytes) else t.encode() for t in texts))
    return file


def prompts_in(file, fields=None, **more):
    return load_prompts(file, fields, **more).records


# ------------------------------------------------------------------------------------------------------- the files


def test_jsonl_and_text(tmp_path):
    assert prompts_in(jsonl(tmp_path, '{"prompt": "a"}', "", '{"prompt": "b", "more": 1}')) == ["a", "b"]
    assert prompts_in(jsonl(tmp_path, '{"q": "a"}'), {"prompt": "q"}) == ["a"]
    assert prompts_in(jsonl(tmp_path, "one prompt", "another", name="p.txt")) == ["one prompt", "another"]


def test_csv_with_quotes_and_line_feeds_inside(tmp_path):
    file = tmp_path / "p.csv"
    with file.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([["prompt", "completion"], ['say "hi",\nplease', "hi"], ["b", "c"]])
    loaded = load_demonstrations(file)
    assert loaded.records == [Demonstration('say "hi",\nplease', "hi"), Demonstration("b", "c")]
    assert [d.prompt.source for d in loaded.records] == [f"{file}:2", f"{file}:4"]


def test_csv_rows_of_another_length_are_named(tmp_path):
    file = jsonl(tmp_path, "prompt,completion", "a,b", "a,b,c", 'x,"never closed', name="p.csv")
    with pytest.raises(InputError, match=r"p\.csv:3: 3 fields, but the header has 2") as caught:
        load_demonstrations(file)
    assert "p.csv:4: not valid CSV" in str(caught.value)
    with pytest.raises(InputError, match=r"p\.csv:4: not valid CSV from here on"):  # more is lost than one row
        load_demonstrations(file, skip_bad=True)
    file.write_text('prompt,completion\nx,"never closed')
    with pytest.raises(InputError) as caught:
        load_demonstrations(file)
    assert str(caught.value).count("p.csv:2") == 1


def test_parquet_and_saved_datasets(tmp_path):
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"prompt": ["a", "b"], "completion": ["c", "d"]})
    dataset.to_parquet(str(tmp_path / "p.parquet"))
    assert [d.completion for d in load_demonstrations(tmp_path / "p.parquet").records] == ["c", "d"]
    dataset.save_to_disk(str(tmp_path / "saved"))
    assert prompts_in(tmp_path / "saved") == ["a", "b"]
    datasets.DatasetDict({"test": dataset}).save_to_disk(str(tmp_path / "parts"))
    assert prompts_in(f"{tmp_path / 'parts'}[test]") == ["a", "b"]
    with pytest.raises(InputError, match="has no split 'train'"):
        prompts_in(tmp_path / "parts")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        prompts_in(tmp_path / "broken.parquet")


def test_only_a_line_feed_ends_a_line(tmp_path):
    odd = "a\u2028b\u0085c\x0cd"  # legal inside a JSON string, though Python would split lines there
    assert prompts_in(jsonl(tmp_path, json.dumps({"prompt": odd}, ensure_ascii=False))) == [odd]


def test_byte_order_mark_and_windows_line_ends_are_fine(tmp_path):
    assert prompts_in(jsonl(tmp_path, b'\xef\xbb\xbf{"prompt": "a"}\r', b'{"prompt": "b"}\r')) == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{bad", r"p\.jsonl:2: not valid JSON"),
        ("[" * 100_000, r"p\.jsonl:2: not valid JSON"),
        ("[1]", r"p\.jsonl:2: a list, not an object"),
        ('{"promt": "x"}', r"p\.jsonl:2: no key 'prompt'; did you mean 'promt'\?"),
        ('{"prompt": null}', r"p\.jsonl:2: 'prompt' is of type NoneType"),
        ('{"prompt": 3}', r"p\.jsonl:2: 'prompt' is of type int"),
        ('{"prompt": "  "}', r"p\.jsonl:2: 'prompt' is empty"),
        ('{"prompt": "cut \\ud83d"}', r"p\.jsonl:2: 'prompt' holds half of a character"),
        (b'{"prompt": "\xff"}', r"p\.jsonl:2: not UTF-8"),
        ('{"prompt": []}', r"p\.jsonl:2: 'prompt' is not a list of chat messages"),
        ('{"prompt": [{"role": "user"}]}', r"p\.jsonl:2: message 1 of 'prompt' is not of the form"),
        ('{"prompt": [{"role": "boss", "content": "x"}]}', r"p\.jsonl:2: message 1 of 'prompt' has the role 'boss'"),
        ('{"prompt": [{"role": "assistant", "content": "x"}]}', r"p\.jsonl:2: 'prompt' ends in an assistant's message"),
        ('{"prompt": "x", "reference": 3}', r"p\.jsonl:2: 'reference' is of type int"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, message):
    with pytest.raises(InputError, match=message):
        load_prompts(jsonl(tmp_path, '{"prompt": "fine"}', line))


def test_first_three_bad_rows_and_the_count(tmp_path):
    with pytest.raises(InputError, match=r"5 bad rows") as caught:
        load_prompts(jsonl(tmp_path, *["{bad"] * 5))
    assert str(caught.value).count("not valid JSON") == 3
    assert "... and 2 more" in str(caught.value)


def test_bad_rows_can_be_left_out_and_are_counted(tmp_path):
    file = jsonl(tmp_path, "{bad", '{"prompt": "a"}', '{"prompt": ""}')
    loaded = load_prompts(file, skip_bad=True)
    assert loaded.records == ["a"]
    assert [line.split(": ")[0] for line in loaded.bad] == [f"{file}:1", f"{file}:3"]
    with pytest.raises(InputError, match=r"holds no prompts.*\n.*p\.jsonl:1: not valid JSON"):
        load_prompts(jsonl(tmp_path, "{bad"), skip_bad=True)


def test_unusable_sources_are_refused(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        load_prompts(tmp_path / "missing.jsonl")
    with pytest.raises(InputError, match=r"not as \.xlsx"):
        load_prompts(tmp_path / "prompts.xlsx")
    with pytest.raises(InputError, match="there is no file nothing"):
        load_prompts("nothing")
    with pytest.raises(InputError, match="holds no prompts"):
        load_prompts(jsonl(tmp_path, "", ""))
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(InputError, match="cannot read"):
        load_prompts(tmp_path / "folder.txt")


# ----------------------------------------------------------------------------------------------------- the records


def test_demonstrations_preferences_and_scores(tmp_path):
    file = jsonl(
        tmp_path, {"prompt": "p", "completion": "c", "chosen": "a", "rejected": "b", "response": "r", "score": 3}
    )
    assert load_demonstrations(file).records == [Demonstration("p", "c")]
    assert load_preferences(file).records == [Preference("p", "a", "b")]
    assert load_scores(file).records == [Scored("p", "r", 3.0)]
    renamed = jsonl(tmp_path, {"q": "p", "good": "a", "bad": "b"})
    fields = {"prompt": "q", "chosen": "good", "rejected": "bad"}
    assert load_preferences(renamed, fields).records == [Preference("p", "a", "b")]


def test_chats(tmp_path):
    asked = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    answered = [{"role": "assistant", "content": "Hello"}]
    (demonstration,) = load_demonstrations(jsonl(tmp_path, {"prompt": asked, "completion": answered})).records
    assert demonstration.prompt.messages == asked
    assert demonstration.completion == "Hello"
    rude = [{"role": "assistant", "content": "What?"}]
    whole = jsonl(tmp_path, {"chosen": asked + answered, "rejected": asked + rude})
    (preference,) = load_preferences(whole).records
    assert (preference.prompt.messages, preference.chosen, preference.rejected) == (asked, "Hello", "What?")
    with pytest.raises(InputError, match="chats that differ in the last message"):
        load_preferences(jsonl(tmp_path, {"chosen": asked + answered, "rejected": rude}))


@pytest.mark.parametrize(
    ("load", "row", "message"),
    [
        (load_demonstrations, {"prompt": "p"}, "no key 'completion'; there is prompt "),
        (load_demonstrations, {"prompt": "p", "completion": " "}, "'completion' is empty"),
        (load_preferences, {"prompt": "p", "chosen": "a", "rejected": "a "}, "the same answer"),
        (load_preferences, {"prompt": "p", "chosen": "a"}, "no key 'rejected'"),
        (load_scores, {"prompt": "p", "response": "r", "score": "good"}, "'score' is \"good\", not a finite number"),
        (load_scores, {"prompt": "p", "response": "r", "score": True}, "not a finite number"),
        (load_scores, {"prompt": "p", "response": "r", "score": None}, "not a finite number"),
    ],
)
def test_records_that_cannot_be_used(tmp_path, load, row, message):
    with pytest.raises(InputError, match=message):
        load(jsonl(tmp_path, row))


def test_a_model_may_have_said_nothing_and_be_judged_for_it(tmp_path):
    (preference,) = load_preferences(jsonl(tmp_path, {"prompt": "p", "chosen": "a", "rejected": " "})).records
    (scored,) = load_scores(jsonl(tmp_path, {"prompt": "p", "response": "", "score": 0})).records
    assert (preference.rejected, scored.response) == ("", "")
    with pytest.raises(InputError, match="the same answer"):
        load_preferences(jsonl(tmp_path, {"prompt": "p", "chosen": "", "rejected": ""}))


# ------------------------------------------------------------------------------------------------ splits and report


def test_equal_prompts_stay_on_one_side():
    split = split_by_prompt(["a", "b", "c", "d"] * 3, 2, seed=0)
    assert len(set(split.held_out)) == 2
    assert len(split.held_out) == 6
    assert not set(split.train) & set(split.held_out)
    assert len(split.train) == 6
    with pytest.raises(InputError, match="leaves nothing to train on"):
        split_by_prompt(["a", "a"], 1, seed=0)


def test_two_files_must_not_share_a_prompt(tmp_path):
    train = jsonl(tmp_path, {"prompt": "a"}, {"prompt": "b"}, name="train.jsonl")
    test = jsonl(tmp_path, {"prompt": "b"}, {"prompt": "c"}, name="test.jsonl")
    with pytest.raises(InputError, match=r"1 of the prompts in .*test\.jsonl are in .*train\.jsonl too"):
        load_split("prompts", str(train), str(test))
    refuse_overlap([Demonstration("a", "x")], ["b"], "train", "test")
    with pytest.raises(InputError, match="held-out prompts must not be trained on"):
        refuse_overlap([Demonstration("a", "x")], ["a"], "train", "test")


class Words:
    """A word is a token; the model reads one more at the beginning of each prompt."""

    def try_encode(self, prompt):
        return [0, *prompt.split()], None

    def count_tokens(self, text):
        return len(text.split())


def test_report_counts_by_hand():
    pairs = [Preference("p one", "a b c", "d"), Preference("p one", "a b c", "d"), Preference("q", "e f", "g h i j")]
    with pytest.warns(UserWarning, match="33% of the training rows lose the end of their rejected at max_new_tokens 2"):
        report = {name: rest for name, *rest in data_summary(Split(pairs, [], num_left_out=4), Words(), 2)}
    assert report["rows"] == ["3", "-"]
    assert report["different prompts"] == ["2", "-"]
    assert report["prompt tokens"] == ["3 median, 3 95 %, 3 longest", "-"]
    assert report["chosen cut at 2"] == ["3", "-"]  # "e f" loses the stop token behind it
    assert report["rejected cut at 2"] == ["1", "-"]
    assert report["rejected tokens"] == ["1 median, 1 95 %, 4 longest", "-"]
    assert report["duplicate rows"] == ["1", "-"]
    assert report["bad rows left out"] == ["4", ""]


# ---------------------------------------------------------------------------------------------------- bundled texts


def test_bundled_posts_are_as_promised():
    task = bundled_tldr()
    assert len(task.train) == 180
    assert len(task.held_out) == 60
    assert all(prompt.reference for prompt in (*task.train, *task.held_out))
    assert len(set(task.train) | set(task.held_out)) == len(task.train) + len(task.held_out)
    for prompt in (*task.train, *task.held_out):
        head, post = prompt.split("\nPOST: ")
        assert head.startswith("SUBREDDIT: r/")
        assert prompt.endswith("\nTL;DR:")
        assert 18 <= len(post.removesuffix("\nTL;DR:").split()) <= 34


def test_bundled_openings_are_open():
    task = bundled_sentiment()
    assert len(task.train) >= 100
    assert len(task.held_out) >= 40
    assert not set(task.train) & set(task.held_out)
    assert all(p[-1].isalnum() or p[-1] == "," for p in (*task.train, *task.held_out))


def test_bundled_preferences_are_as_promised():
    pairs, posts = bundled_preferences(), bundled_tldr()
    everything = [*pairs.train, *pairs.held_out]
    assert (len(pairs.train), len(pairs.held_out)) == (360, 120)
    assert {p.prompt for p in pairs.train} <= set(posts.train)
    assert {p.prompt for p in pairs.held_out} <= set(posts.held_out)
    assert all(p.chosen.strip() and p.rejected.strip() and p.chosen != p.rejected for p in everything)
    assert not {p.chosen for p in everything} & {d.completion for d in bundled_demonstrations().train}


def test_nothing_but_the_post_tells_which_summary_was_chosen():
    """Not the length, the punctuation, the first word or the other words: a reward model has to read."""
    pairs = bundled_preferences()
    everything = [*pairs.train, *pairs.held_out]
    longer, shorter = (
        sum(sign * (len(p.chosen.split()) - len(p.rejected.split())) > 0 for p in everything) for sign in (1, -1)
    )
    assert abs(longer - shorter) <= 0.05 * len(everything)
    for answer in (text for p in everything for text in (p.chosen, p.rejected)):
        assert re.fullmatch(r"[A-Z0-9][A-Za-z0-9', -]+\.", answer)
    assert bag_of_words_accuracy(pairs.train, pairs.held_out) <= 0.6
    assert bag_of_words_accuracy(pairs.held_out, pairs.train) <= 0.6


def test_copying_the_post_is_not_what_was_chosen():
    """A judge that counts the answer's words in the post is right on at most 65 %. A policy that learns from a judge
    of that kind copies.
    """
    pairs = bundled_preferences()
    for part in (pairs.train, pairs.held_out):
        shares = [[_share_in_the_post(p.prompt, answer) for answer in (p.chosen, p.rejected)] for p in part]
        right = sum((chosen > rejected) + 0.5 * (chosen == rejected) for chosen, rejected in shares)
        assert 0.45 <= right / len(part) <= 0.65


def _share_in_the_post(prompt: str, answer: str) -> float:
    said, post = words(answer), words(prompt.split("POST: ")[1].removesuffix("\nTL;DR:"))
    return sum(word in post for word in said) / len(said)


def test_bundled_texts_are_sources():
    assert load_split("prompts", "bundled:tldr").train == bundled_tldr().train
    assert load_split("preferences", "bundled:tldr") == bundled_preferences()
    with pytest.raises(InputError, match="there are no preferences 'bundled:tldrr'; did you mean"):
        load_split("preferences", "bundled:tldrr")


def test_the_advice_on_held_out_prompts_is_not_what_just_failed():
    for distinct, advised in ((2, "num_eval_prompts: 0"), (3, "num_eval_prompts: 2"), (20, "num_eval_prompts: 4")):
        records = [Demonstration(f"p{n}", "a") for n in range(distinct)]
        with pytest.raises(InputError, match=f"Set {advised}, or give"):
            split_by_prompt(records, distinct, seed=0)


def test_more_than_half_of_the_rows_held_out_is_mentioned():
    rows = [Demonstration(f"p{n % 4}", f"answer {n}") for n in range(60)]
    with pytest.warns(UserWarning, match=r"45 of 60 rows are held out \(num_eval_prompts: 3 prompts with all"):
        split_by_prompt(rows, 3, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        split_by_prompt(rows, 2, seed=0)


def test_a_dataset_s_name_is_refused_at_once_where_no_hub_answers(monkeypatch):
    monkeypatch.setattr("burnish.data.rows.hub_answers", lambda: False)
    started = time.monotonic()
    with pytest.raises(InputError, match=r"cannot load the dataset org/name \(no hub answers from here\)"):
        load_prompts("org/name")
    assert time.monotonic() - started < 10  # the hub's own client would retry for half a minute


@pytest.mark.parametrize(
    ("wanted", "prompts", "held_out"),
    [(None, n, h) for n, h in ((3, 0), (7, 0), (8, 2), (40, 10), (100, 16), (300, 30), (640, 64), (10_000, 64))]
    + [(0.1, 40, 4), (0.5, 40, 20), (0.01, 40, 2), (0, 40, 0), (16, 40, 16)],
)
def test_a_tenth_is_held_out_unless_a_count_or_a_share_is_given(wanted, prompts, held_out):
    split = split_by_prompt([str(n) for n in range(prompts)], wanted, seed=0)
    assert (len(split.train), len(split.held_out)) == (prompts - held_out, held_out)


def test_a_share_that_leaves_nothing_is_refused():
    with pytest.raises(InputError, match=r"num_eval_prompts 0\.9 leaves nothing to train on: there are 2"):
        split_by_prompt(["a", "b"], 0.9, seed=0)


def test_counts_and_shares_are_kept_as_they_are_given():
    sizes = {given: SFTConfig(demonstrations="-", num_eval_prompts=given).num_eval_prompts for given in (0, 16, 32.0)}
    assert [(type(n), n) for n in sizes.values()] == [(int, 0), (int, 16), (int, 32)]
    assert SFTConfig(demonstrations="-", num_eval_prompts=0.25).num_eval_prompts == 0.25
    assert SFTConfig(demonstrations="-").num_eval_prompts is None
