"""Text that grows token by token."""

import random

import pytest

from burnish.serving.spoken import Spoken
from tiny import tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


def said(tokenizer, ids, stop=()):
    """All pieces, and what the text was stopped by."""
    spoken, pieces = Spoken(tokenizer, stop), []
    for token in ids:
        spoken.hear(token)
        if spoken.is_stopped:
            break
        pieces.append(spoken.give(False))
    spoken.end()
    return [*pieces, spoken.give(True)], spoken


def ids_of(tokenizer, text):
    return tokenizer(text)["input_ids"]


def test_pieces_together_are_the_text(tokenizer):
    text = "no € is worth a 🦜, says naïve Zoë " * 5
    pieces, spoken = said(tokenizer, ids_of(tokenizer, text))
    assert "".join(pieces) == spoken.whole == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_bytes_that_are_no_text_come_out_as_the_tokenizer_has_them(tokenizer):
    draw = random.Random(0)
    for _ in range(30):
        ids = [draw.randrange(256) for _ in range(200)]
        pieces, _ = said(tokenizer, ids)
        assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=True)
        assert sum(map(bool, pieces)) > 20  # and on the way


def test_a_stop_string_across_tokens_ends_the_text_before_it(tokenizer):
    pieces, spoken = said(tokenizer, ids_of(tokenizer, "one END two"), stop=["END"])
    assert "".join(pieces) == spoken.whole == "one "
    assert spoken.is_stopped
    assert pieces[-2:] == ["", ""]  # what could have been a stop string was not given out


def test_what_only_began_like_a_stop_string_is_given_out(tokenizer):
    pieces, spoken = said(tokenizer, ids_of(tokenizer, "EN EEND"), stop=["END!", "ENEM"])
    assert "".join(pieces) == "EN EEND"
    assert pieces[0] == pieces[1] == ""
    assert pieces[2] == "EN "
    assert not spoken.is_stopped


def test_the_first_of_several_stop_strings_counts(tokenizer):
    _, spoken = said(tokenizer, ids_of(tokenizer, "a, b; c"), stop=["; c", ","])
    assert spoken.whole == "a"


def test_a_stop_string_may_lie_inside_one_token():
    class Words:
        def decode(self, ids, skip_special_tokens):
            return "".join(("hello. ", "wor\n\nld")[i] for i in ids)

    pieces, spoken = said(Words(), [0, 1, 0], stop=["\n\n"])
    assert ("".join(pieces), spoken.is_stopped) == ("hello. wor", True)
