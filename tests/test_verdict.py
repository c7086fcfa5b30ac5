"""The verdict: worth it, over-optimised, undecided or a failure, and why."""

import pytest

from burnish.evaluation import Evaluation, distinct
from burnish.intervals import (
    clustered_share_interval,
    correlation,
    exact_share_interval,
    half_interval,
    share_interval,
    sign_test,
    student,
)
from burnish.verdict import WinRate, judge, win_rate


def evaluation(reward, second=(), texts=None, surprise=1.0, tokens=10.0):
    n = len(reward)
    return Evaluation(
        prompts=[f"p{i}" for i in range(n)],
        texts=texts or [f"answer number {i} of many" for i in range(n)],
        reward=list(reward),
        second_reward=list(second),
        kl=[1.0] * n,
        tokens=[tokens] * n,
        finished=[1.0] * n,
        surprise=[surprise] * n,
    )


LOW, HIGH = [0.0] * 40, [1.0] * 40


def test_intervals_by_hand():
    low, high = share_interval(8, 10)  # Wilson's interval for 8 of 10, as in textbooks
    assert (low, high) == (pytest.approx(0.490, abs=1e-3), pytest.approx(0.943, abs=1e-3))
    assert share_interval(0, 0) == (0.0, 1.0)
    assert share_interval(10, 10)[1] == 1.0
    assert half_interval([1.0, 2.0, 3.0]) == pytest.approx(4.303 / 3**0.5, rel=0.01)  # deviation 1
    assert correlation([1, 2, 3], [2, 4, 6]) == pytest.approx(1.0)
    assert correlation([1, 2, 3], [5, 5, 5]) == 0.0


def test_students_factor_is_the_table_s_for_every_number_of_degrees():
    table = {1: 12.7062, 2: 4.3027, 3: 3.1824, 5: 2.5706, 10: 2.2281, 30: 2.0423, 100: 1.9840, 1000: 1.9623}
    for freedom, quantile in table.items():
        assert student(freedom) == pytest.approx(quantile, abs=1e-4)
    assert half_interval([0.0, 2.0]) == pytest.approx(12.7062, abs=1e-4)  # deviation sqrt(2), over sqrt(2)


def test_sign_test_by_hand():
    assert sign_test(9, 0) == 2 / 2**9
    assert sign_test(2, 8) == 2 * (1 + 10 + 45) / 2**10
    assert sign_test(5, 0) == 2 / 2**5  # 0.0625: five decided prompts can never be clear
    assert sign_test(3, 3) == sign_test(0, 0) == 1.0


def test_exact_share_interval_is_the_table_s_and_agrees_with_the_sign_test():
    assert exact_share_interval(8, 10) == (pytest.approx(0.4439, abs=1e-4), pytest.approx(0.9748, abs=1e-4))
    assert exact_share_interval(9, 9) == (pytest.approx(0.025 ** (1 / 9)), 1.0)  # all hit with 2.5 % at the low end
    assert exact_share_interval(0, 0) == (0.0, 1.0)
    for total in range(1, 30):
        for wins in range(total + 1):
            low, high = exact_share_interval(wins, total)
            assert (low <= 0.5 <= high) == (sign_test(wins, total - wins) >= 0.05)


def test_pairs_that_share_a_prompt_say_less():
    hits, groups = [1, 1] * 8 + [0, 0] * 2, [n // 2 for n in range(20)]
    # Each group's sum is off by 2 * 0.2 (8 times) or 2 * 0.8 (twice): 2.56 + 2.56... = 6.4 in squares; variance of
    # the mean 6.4 * 10/9 / 400 = 0.16 / 9, so the 20 cases are worth 9.
    assert clustered_share_interval(hits, groups) == pytest.approx(share_interval(0.8 * 9, 9))
    assert clustered_share_interval(hits, range(20)) == share_interval(16, 20)
    assert clustered_share_interval([1] * 20, groups) == share_interval(10, 10)
    for right in range(10):  # one prompt is one case, whatever rounding leaves of its scatter
        assert clustered_share_interval([1] * right + [0] * (9 - right), [0] * 9) == share_interval(right / 9, 1)


def test_win_rate_counts_ties_half():
    assert win_rate([1, 2, 3, 4], [0, 2, 5, 4]).rate == pytest.approx((1 + 0.5 + 0 + 0.5) / 4)


def test_distinct_by_hand():
    # pairs: a b, b a, a b -> two different of three
    assert distinct(["a b a b"], 2) == pytest.approx(2 / 3)
    assert distinct([""], 1) == 0.0


def test_a_clear_gain_is_worth_it():
    verdict = judge(evaluation(LOW), evaluation(HIGH))
    assert verdict.outcome == "worth it"
    assert "reward 0.00 to 1.00" in verdict.sentence


def test_a_loss_is_a_failure():
    assert judge(evaluation(HIGH), evaluation(LOW)).outcome == "failure"


def test_a_reward_that_says_nothing_is_called_so():
    verdict = judge(evaluation([1.0] * 10), evaluation([1.0] * 10))
    assert (verdict.outcome, "every answer gets the same reward" in verdict.sentence) == ("failure", True)
    assert "no more often than a coin" in judge(evaluation([0.0] * 2), evaluation([1.0, -1.0])).sentence


def test_a_coin_toss_is_undecided():
    verdict = judge(evaluation([0.0] * 10), evaluation([1.0] * 6 + [-1.0] * 4))
    assert verdict.outcome == "undecided"
    assert "coin toss" in verdict.sentence


def test_a_second_reward_that_disagrees_means_over_optimised():
    verdict = judge(evaluation(LOW, second=HIGH), evaluation(HIGH, second=LOW))
    assert verdict.outcome == "over-optimised"
    assert "not trained on prefers the start" in verdict.sentence


def test_a_second_reward_that_falls_clearly_means_over_optimised_though_it_loses_as_often_as_it_wins():
    falls = [-9.0, 1.0] * 20
    verdict = judge(evaluation(LOW, second=LOW), evaluation(HIGH, second=falls))
    assert verdict.outcome == "over-optimised"
    assert "prefers the start model (0.00 to -4.00, better on 50%" in verdict.sentence
    rises = [9.0, -1.0] * 20
    assert "agrees (0.00 to 4.00" in judge(evaluation(LOW, second=LOW), evaluation(HIGH, second=rises)).sentence
    rarely_better_but_by_more = [-0.1] * 26 + [0.3] * 14
    worse = [-0.1] * 26 + [0.1] * 14
    for second, said in ((rarely_better_but_by_more, "sees no clear difference"), (worse, "leans to the start model")):
        assert said in judge(evaluation(LOW, second=LOW), evaluation(HIGH, second=second)).sentence
    even = [1.0, -1.0] * 20
    assert "no clear difference" in judge(evaluation(LOW, second=LOW), evaluation(HIGH, second=even)).sentence


def test_a_second_reward_that_agrees_is_told():
    verdict = judge(evaluation(LOW, second=LOW), evaluation(HIGH, second=HIGH))
    assert verdict.outcome == "worth it"
    assert "not trained on agrees" in verdict.sentence


@pytest.mark.parametrize(
    ("symptom", "word"),
    [
        ({"surprise": 2.0}, "surprising"),
        ({"texts": ["the same words again"] * 40}, "repeats itself"),
        ({"tokens": 25.0}, "length went from 10 to 25"),
        ({"tokens": 4.0}, "length went from 10 to 4"),
    ],
)
def test_text_that_got_worse_means_over_optimised(symptom, word):
    verdict = judge(evaluation(LOW), evaluation(HIGH, **symptom))
    assert verdict.outcome == "over-optimised"
    assert word in verdict.sentence


def test_people_have_the_last_word():
    people = WinRate(0.9, (0.6, 0.98), 20)
    verdict = judge(evaluation(LOW), evaluation(HIGH, surprise=3.0), human_wins=people)
    assert verdict.outcome == "worth it"
    assert judge(evaluation(HIGH), evaluation(LOW), human_wins=people).outcome == "worth it"  # whatever the reward says
    against = judge(evaluation(LOW), evaluation(HIGH), human_wins=WinRate(0.1, (0.02, 0.4), 20))
    assert judge(evaluation(LOW), evaluation(LOW), human_wins=WinRate(0.1, (0.02, 0.4), 20)).outcome == "failure"
    assert against.outcome == "over-optimised"


def test_best_of_n_stands_beside_it():
    verdict = judge(evaluation(LOW), evaluation([0.5] * 40), (4, evaluation(HIGH)))
    assert verdict.best_of_n == {"n": 4, "reward": 1.0, "tuned_beats_it": 0.0}
    assert "best of 4 answers of the start model gives 1.00 at 4 times the cost" in verdict.sentence
