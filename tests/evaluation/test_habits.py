"""What the tuned model says more often: found where it is clear, silent where it is chance."""

import random

from burnish.drawing.comparison import who_won
from burnish.evaluation.evaluation import Evaluation
from burnish.evaluation.habits import Habit, new_habits
from burnish.evaluation.verdict import judge

NAMES = [f"name{n}" for n in range(40)]


def test_a_phrase_that_many_more_answers_have_is_told_with_both_counts():
    start = [f"{name} is here" for name in NAMES]
    start[0] += ", and now it rains"
    tuned = [f"{name} is here, and now it rains" for name in NAMES[:30]] + start[30:]
    assert new_habits(start, tuned) == [Habit("and now it rains", 1, 30)]  # the longest, and none of its parts


def test_a_long_sentence_that_many_answers_share_is_one_habit():
    sentence = "one two three four five six seven eight nine ten"
    assert len(new_habits(NAMES, [f"{name} {sentence}" for name in NAMES[:30]] + NAMES[30:])) == 1


def test_habits_of_different_answers_are_told_apart_though_they_share_a_word():
    start = [f"the {name}" for name in NAMES]
    tuned = [f"the end of {text}" for text in start[:20]] + [f"{text} is the best" for text in start[20:]]
    assert {habit.phrase for habit in new_habits(start, tuned)} == {"the end of the", "is the best"}


def test_what_only_few_answers_say_is_no_habit():
    start = ["a plain answer"] * 40
    # 8 gained and none lost: p = 2 / 2^8 = 0.008. One phrase alone would be clear; these are sixteen.
    assert new_habits(start, [f"{text} on the whole sir" for text in start[:8]] + start[8:]) == []
    assert new_habits(start, [f"{text} sir" for text in start[:5]] + start[5:]) == []  # fewer than 6 are never clear
    assert new_habits(start, start) == new_habits([], []) == new_habits(["", ""], ["", ""]) == []


def test_chance_is_no_habit():
    vocabulary = [f"w{n}" for n in range(60)]
    draw = random.Random(0)
    found = 0
    for _ in range(100):
        start, tuned = ([" ".join(draw.choices(vocabulary, k=15)) for _ in range(60)] for _ in range(2))
        found += bool(new_habits(start, tuned))
    assert found <= 5  # at most the level, for all phrases of a comparison together


def test_phrases_that_stand_in_one_answer_do_not_hide_a_habit():
    start, tuned = ([" ".join(f"{side}{n}x{k}" for k in range(12)) for n in range(40)] for side in "ab")
    assert new_habits(start, [f"now {text}" for text in tuned[:14]] + tuned[14:]) == [Habit("now", 0, 14)]


def test_what_is_said_less_often_is_none():
    start = [f"{name} is here, and now it rains" for name in NAMES]
    assert new_habits(start, [f"{name} is here" for name in NAMES]) == []


def test_the_verdict_has_them_once_for_each_prompt_and_shows_them():
    def side(texts):
        texts = texts * 2  # each prompt is answered twice
        return Evaluation(prompts=NAMES * 2, texts=texts, reward=[0.0] * 80, tokens=[3.0] * 80, finished=[1.0] * 80,
                          surprise=[1.0] * 80)  # fmt: skip

    verdict = judge(side(["it rains"] * 40), side(["now it rains"] * 25 + ["it rains"] * 15)).as_dict()
    assert verdict["habits"] == [{"phrase": "now it rains", "start": 0, "tuned": 25}]
    assert who_won(verdict)[-1] == ('answers that say "now it rains"', "0", "25")
    assert who_won({key: own for key, own in verdict.items() if key != "habits"})  # as older runs have it
