"""Prompts in: bad lines are named by file and number, and bundled texts are what the docs say."""

import json

import pytest

from burnish import InputError
from burnish.data import bundled_sentiment, bundled_tldr, load_prompts, split_prompts


def jsonl(tmp_path, *lines, name="p.jsonl"):
    file = tmp_path / name
    file.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return file


def test_jsonl_and_text(tmp_path):
    assert load_prompts(jsonl(tmp_path, '{"prompt": "a"}', "", '{"prompt": "b", "more": 1}')) == ["a", "b"]
    assert load_prompts(jsonl(tmp_path, '{"q": "a"}'), field="q") == ["a"]
    assert load_prompts(jsonl(tmp_path, "one prompt", "another", name="p.txt")) == ["one prompt", "another"]


def test_only_a_line_feed_ends_a_line(tmp_path):
    odd = "a\u2028b\u0085c\x0cd"  # legal inside a JSON string, though Python would split lines there
    assert load_prompts(jsonl(tmp_path, json.dumps({"prompt": odd}, ensure_ascii=False))) == [odd]


def test_byte_order_mark_and_windows_line_ends_are_fine(tmp_path):
    assert load_prompts(jsonl(tmp_path, b'\xef\xbb\xbf{"prompt": "a"}\r', b'{"prompt": "b"}\r')) == ["a", "b"]


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
    ],
)
def test_bad_lines_are_named(tmp_path, line, message):
    with pytest.raises(InputError, match=message):
        load_prompts(jsonl(tmp_path, '{"prompt": "fine"}', line))


def test_first_three_bad_lines_and_the_count(tmp_path):
    with pytest.raises(InputError, match=r"5 bad lines") as caught:
        load_prompts(jsonl(tmp_path, *["{bad"] * 5))
    assert str(caught.value).count("not valid JSON") == 3
    assert "... and 2 more" in str(caught.value)


def test_unusable_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        load_prompts(tmp_path / "missing.jsonl")
    with pytest.raises(InputError, match=r"\.jsonl or \.txt"):
        load_prompts(tmp_path / "prompts.csv")
    with pytest.raises(InputError, match="holds no prompts"):
        load_prompts(jsonl(tmp_path, "", ""))
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(InputError, match="cannot read"):
        load_prompts(tmp_path / "folder.txt")


def test_equal_prompts_stay_on_one_side():
    train, held_out = split_prompts(["a", "b", "c", "d"] * 3, 2, seed=0)
    assert len(held_out) == 2
    assert not set(train) & set(held_out)
    assert len(train) == 6
    with pytest.raises(InputError, match="leaves nothing to train on"):
        split_prompts(["a", "a"], 1, seed=0)


def test_bundled_posts_are_as_promised():
    task = bundled_tldr()
    assert len(task.train) + len(task.held_out) >= 120
    assert len(task.held_out) >= 40
    assert len(task.references) == len(task.held_out)
    assert len(set(task.train) | set(task.held_out)) == len(task.train) + len(task.held_out)
    for prompt in (*task.train, *task.held_out):
        head, post = prompt.split("\nPOST: ")
        assert head.startswith("SUBREDDIT: r/")
        assert prompt.endswith("\nTL;DR:")
        assert 40 <= len(post.removesuffix("\nTL;DR:").split()) <= 120


def test_bundled_openings_are_open():
    task = bundled_sentiment()
    assert len(task.train) >= 100
    assert len(task.held_out) >= 40
    assert not set(task.train) & set(task.held_out)
    assert all(p[-1].isalnum() or p[-1] == "," for p in (*task.train, *task.held_out))
