"""The named rules, part by part, and how a config's reward is found."""

import re
from pathlib import Path

import pytest
import yaml

from burnish import InputError, RewardComputer, TrainConfig
from burnish.rewards.part import Workshop
from burnish.rewards.parts import KINDS, part_of
from burnish.rewards.rules import sentiment
from burnish.rewards.tldr import TLDR_WEIGHTS, tldr, tldr_parts
from burnish.rewards.words import rouge_l

PROMPT = (
    "SUBREDDIT: r/pets\nTITLE: My parrot swears at guests\nPOST: We adopted a parrot in May. The parrot learned to "
    "swear from the old owner, and now he swears whenever guests ring the bell. Should we train him or move him "
    "upstairs?\nTL;DR:"
)


def test_a_good_summary_scores_higher_than_every_bad_kind():
    good = "Our parrot swears at guests, should we train him or move him?"
    bad = {
        "off topic": "The stock market closed higher on Tuesday after a long week.",
        "cut off": "Our parrot swears at guests, should we train him or move",
        "repeating": "Our parrot swears, our parrot swears, our parrot swears, our parrot swears.",
        "copied": "The parrot learned to swear from the old owner, and now he swears whenever guests ring the bell.",
        "too long": "Our parrot swears at guests. " + " ".join(f"word{i}" for i in range(60)) + ".",
        "blank": "  ",
    }
    best = tldr([PROMPT], [good])[0]
    for kind, response in bad.items():
        assert tldr([PROMPT], [response])[0] < best, kind
    assert tldr([PROMPT], [""]) == [-1.0]


def test_parts_by_hand():
    parts = tldr_parts(PROMPT, "Parrot swears at guests about money.")
    # content words: parrot, swears, guests, money -> 3 of 4 stand in the post
    assert parts["on_topic"] == pytest.approx(3 / 4)
    # keys: parrot, swear, guest (title) - each also stands twice or more -, and train? move? no: once. 3 of 3
    assert parts["coverage"] == pytest.approx(1.0)
    # six words: 6 / 8
    assert parts["brevity"] == pytest.approx(0.75)
    assert parts["complete"] == 1.0
    assert parts["repetition"] == 0.0
    assert parts["copying"] == 0.0


def test_copying_begins_after_six_words_in_a_row():
    six = "learned to swear from the old"
    assert tldr_parts(PROMPT, six)["copying"] == 0.0
    assert tldr_parts(PROMPT, six + " owner")["copying"] == pytest.approx(1 / 8)


def test_repetition_by_hand():
    # "a b a b a b": pairs ab ba ab ba ab, two different of five
    assert tldr_parts(PROMPT, "a b a b a b")["repetition"] == pytest.approx(3 / 5)


def test_the_weights_of_a_perfect_summary_sum_to_one():
    assert sum(w for w in TLDR_WEIGHTS.values() if w > 0) == pytest.approx(1.0)


def test_a_prompt_in_another_form_is_all_post():
    assert tldr_parts("The parrot swears.", "A parrot swears.")["on_topic"] == 1.0


def test_endings_do_not_hide_a_word():
    assert tldr_parts("POST: she moved and adopted kitties", "moving, adopting a kitty.")["on_topic"] == 1.0


def test_rouge_l_by_hand():
    # longest common subsequence of "the cat sat down" and "the cat lay down quietly": the cat down = 3; 2 * 3 / (4 + 5)
    assert rouge_l("the cat sat down", "the cat lay down quietly") == pytest.approx(6 / 9)
    assert rouge_l("same words here", "same words here") == 1.0
    assert rouge_l("one", "") == 0.0


def test_sentiment_tells_joy_from_grief():
    joy, grief = sentiment(["p", "p"], ["What a wonderful, happy day!", "A terrible, sad disaster."])
    assert joy > 0.5
    assert grief < -0.5


def test_reward_function_comes_from_a_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def short(prompts, responses):\n    return [-len(r) for r in responses]\n")
    assert part_of(f"{file}:short").make(Workshop())(["p"], ["abc"]) == [-3]


def test_reward_file_may_use_dataclasses_and_its_neighbours(tmp_path):
    (tmp_path / "neighbour.py").write_text("WEIGHT = 3.0\n")
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom neighbour import WEIGHT\n"
        "@dataclass\nclass Weight:\n    w: float = WEIGHT\n"
        "def constant(prompts, responses):\n    return [Weight().w] * len(responses)\n"
    )
    assert part_of(f"{tmp_path / 'mine.py'}:constant").make(Workshop())(["p"], ["r"]) == [3.0]


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("tldrr", "did you mean 'tldr'"),
        ("missing.py:f", "does not exist"),
        ("{folder}/mine.py:shrt", "no function 'shrt'; did you mean 'short'"),
        ("{folder}/broken.py:f", "cannot be run: NameError"),
    ],
)
def test_rewards_that_do_not_exist_are_refused(tmp_path, reward, message):
    (tmp_path / "mine.py").write_text("def short(prompts, responses):\n    return []\n")
    (tmp_path / "broken.py").write_text("undefined_name\n")
    with pytest.raises(InputError, match=message):
        part_of(reward.format(folder=tmp_path)).check(Workshop())


def test_a_rule_s_name_from_python_goes_into_the_config():
    with pytest.raises(InputError, match=r"goes into the config: PPOConfig\(reward="):
        RewardComputer("tldr")


def test_a_folder_without_a_reward_model_is_refused_before_anything_is_loaded(tmp_path):
    with pytest.raises(InputError, match="holds no reward model; name the folder of a finished `burnish reward` run"):
        part_of(f"{tmp_path}/").check(Workshop())


def test_the_examples_in_the_documentation_are_configs():
    page = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text()
    examples = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    seen = set()
    for example in examples:
        config = TrainConfig(**{"prompts": "p.txt"} | example)
        seen |= {part.kind for part in config.all_reward_parts}
    assert seen == set(KINDS)
