"""The verdict: worth it, over-optimised, undecided, too few to tell or a failure, and why."""

import json
import random

import pytest
from rich.console import Console

from burnish.data.records import Prompt
from burnish.evaluation import people
from burnish.evaluation.evaluation import Evaluation, distinct
from burnish.evaluation.intervals import (
    clustered_share_interval,
    correlation,
    exact_share_interval,
    half_interval,
    share_interval,
    sign_test,
    student,
)
from burnish.evaluation.paired import ENOUGH, compare
from burnish.evaluation.verdict import judge
from burnish.runs.run import Run
from burnish.stages.evaluate import verdict_table, write_verdict
from tiny import tiny_config


def evaluation(reward, second=(), texts=None, surprise=1.0, tokens=10.0, finished=None, prompts=None):
    n = len(reward)
    return Evaluation(
        prompts=prompts or [f"p{i}" for i in range(n)],
        texts=texts or [f"answer number {i} of many" for i in range(n)],
        reward=list(reward),
        second_reward=list(second),
        kl=[1.0] * n,
        tokens=[tokens] * n,
        finished=finished or [1.0] * n,
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


def test_a_tie_counts_for_neither_side():
    compared = compare([0, 2, 5, 4, 1], [1, 2, 3, 4, 3])
    assert (compared.wins, compared.ties, compared.losses) == (2, 2, 1)
    assert compared.rate == pytest.approx(2 / 3)
    assert compared.interval == exact_share_interval(2, 3)
    assert (compared.change, compared.half_change) == (pytest.approx(0.2), half_interval([1, 0, -2, 0, 2]))
    assert str(compared) == "2.40 to 2.60 (+0.20 ± 1.84), better on 2, worse on 1, equal on 2 of 5 prompts"
    assert compared.share == "9% to 99% of the decided ones"


def test_a_few_wins_without_a_loss_are_clear_among_many_ties():
    verdict = judge(evaluation([0.0] * 44 + [1.0]), evaluation([1.0] * 9 + [0.0] * 35 + [1.0]))
    assert verdict.outcome == "worth it"
    assert "better on 9, worse on 0, equal on 36 of 45 prompts (66% to 100% of the decided ones)" in verdict.sentence
    plain = verdict.as_dict()["win_rate"]
    assert (plain["wins"], plain["ties"], plain["losses"], plain["num_prompts"]) == (9, 36, 0, 45)
    assert plain["p_value"] == pytest.approx(0.0039, abs=1e-4)


def test_who_won_fits_a_terminal_of_80_columns():
    rewards = [0.0] * 44 + [1.0], [1.0] * 9 + [0.0] * 35 + [1.0]
    sides = [evaluation(r, second=r) for r in rewards]
    people = compare([0.0] * 20, [1.0] * 15 + [0.0] * 2 + [-1.0] * 3)
    console = Console(width=80)
    with console.capture() as shown:
        console.print(verdict_table(*sides, judge(*sides, (4, sides[1]), people)))
    text = shown.get()
    for label, cell in (
        ("better by the reward (36 equal)", "9 (66% to 100%)"),
        ("by how much on average", "+0.200 ± 0.122"),
        ("better by a second one (36 equal)", "9 (66% to 100%)"),
        ("better to people (2 equal)", "15 (59% to 96%)"),
    ):
        assert any(label in line and cell in line for line in text.splitlines()), text


def test_rewards_of_one_size_are_judged_by_their_signs_alone():
    # 7 to 1: the sign test has p = 0.07; Student's interval, 0.15 ± 0.14, would call it clear
    compared = compare([0.0] * 40, [1.0] * 7 + [-1.0] + [0.0] * 32)
    assert compared.change > compared.half_change
    assert not compared.prefers_tuned


def test_a_side_is_clear_by_count_or_by_size_unless_the_other_says_the_opposite():
    often = compare([0.0] * 20, [0.1] * 17 + [-0.2] * 3)
    assert (often.by_count, often.prefers_tuned) == (1, True)
    much = compare([0.0] * 20, [2.0, -0.1] * 10)
    assert (much.by_count, much.by_size, much.prefers_tuned) == (0, 1, True)
    rarely_but_much_worse = [0.1] * 190 + [-9.0, -10.0] * 5
    assert compare([0.0] * 200, rarely_but_much_worse).at_odds
    verdict = judge(evaluation([0.0] * 200), evaluation(rarely_but_much_worse))
    assert (verdict.outcome, "better more often, but worse on average" in verdict.sentence) == ("undecided", True)
    start, tuned = (evaluation([r] * 200, second=s) for r, s in ((0.0, [0.0] * 200), (1.0, rarely_but_much_worse)))
    assert judge(start, tuned).outcome == "over-optimised"


def test_where_nothing_changed_few_runs_are_called_better():
    """Both sides drawn alike: right or wrong with a small bonus, the shape of rewards that misleads Student most."""
    draw = random.Random(0)
    for num_prompts in (3, 8, 40):
        runs = [
            [[float(draw.random() < 0.5) + 0.1 * draw.random() for _ in range(num_prompts)] for _ in range(2)]
            for _ in range(1000)
        ]
        assert sum(compare(*sides).prefers_tuned for sides in runs) / len(runs) < 0.05


def test_six_prompts_half_of_them_won_are_no_failure():
    verdict = judge(evaluation([0.0] * 6), evaluation([1.0, 1.1, 0.9, -1.0, -1.1, -0.9]))
    assert verdict.outcome == "undecided"


def test_fewer_than_six_decided_prompts_are_too_few_to_tell():
    verdict = judge(evaluation([0.0] * 20), evaluation([1.0, 1.1, 0.9, 1.2, 1.3] + [0.0] * 15))
    assert verdict.outcome == "too few to tell"
    assert "Hold out more: about 120 different prompts would do" in verdict.sentence  # 30 decided, at 5 of 20
    assert judge(evaluation([0.0, 0.1]), evaluation([1.0, 1.1])).outcome == "too few to tell"
    unchanged = judge(evaluation([0.0, 1.0]), evaluation([0.0, 1.0]))
    assert (unchanged.outcome, "no answer has another reward" in unchanged.sentence) == ("too few to tell", True)
    assert judge(evaluation([1.0, 1.1]), evaluation([0.0, 0.1])).outcome == "too few to tell"  # nor a loss
    assert judge(evaluation([0.0] * 6), evaluation([1.0] * 6)).outcome == "worth it"


def test_enough_prompts_show_a_model_that_wins_three_of_four():
    draw = random.Random(0)
    clear = [compare([0.0] * ENOUGH, [draw.choice([1.0, 1.0, 1.0, -1.0]) for _ in range(ENOUGH)]) for _ in range(2000)]
    assert sum(c.prefers_tuned for c in clear) / len(clear) == pytest.approx(0.80, abs=0.03)


def test_no_gain_is_a_failure_only_where_enough_prompts_show_it():
    # spread 1; changes of ±0.3 by turns: 0 ± 0.3 * 1.97 / sqrt(n), below a fifth from n = 10 on
    def outcome(num_prompts):
        start = [1.0, 1.0, -1.0, -1.0] * (num_prompts // 4)
        tuned = [s + c for s, c in zip(start, [0.3, -0.3] * (num_prompts // 2), strict=True)]
        return judge(evaluation(start), evaluation(tuned))

    assert outcome(100).outcome == "failure"
    assert "below 20% of the spread" in outcome(100).sentence
    assert outcome(28).outcome == "undecided"
    noisy = [1.0, -1.0] * 32  # 64 prompts, 0 ± 0.36: it may be a gain, or none
    assert judge(evaluation(noisy), evaluation([1.0, 1.0, -1.0, -1.0] * 16)).outcome == "undecided"


def test_the_same_prompt_again_is_no_further_evidence():
    copies = [f"p{n % 3}" for n in range(30)]
    start, tuned = evaluation([0.0] * 30, prompts=copies), evaluation([1.0, 2.0, 3.0] * 10, prompts=copies)
    verdict = judge(start, tuned)
    assert (verdict.outcome, verdict.wins.num_prompts, verdict.wins.wins) == ("too few to tell", 3, 3)
    assert verdict.wins.half_change == pytest.approx(half_interval([1.0, 2.0, 3.0]))
    assert tuned.table()["reward"] == (2.0, pytest.approx(half_interval([1.0, 2.0, 3.0])))
    # one vote for a prompt: 0.1 and 0.7 tie with 0.4 twice, whatever rounding leaves of it; +2 and -1 are a win
    twice = evaluation([0.4, 0.4, 0.0, 0.0], prompts=["a", "a", "b", "b"])
    voted = judge(twice, evaluation([0.1, 0.7, 2.0, -1.0], prompts=["a", "a", "b", "b"])).wins
    assert (voted.wins, voted.ties, voted.losses) == (1, 1, 0)


def test_chats_with_the_same_text_but_other_messages_are_different_prompts():
    chats = [Prompt("hi", messages=[{"role": role, "content": "hi"}]) for role in ("user", "user", "system")]
    assert evaluation([1.0, 2.0, 4.0], prompts=chats).per_prompt([1.0, 2.0, 4.0]) == [1.5, 4.0]


def test_answers_that_no_longer_end_are_told():
    # 5 of 16 prompts no longer finish and none does that did not: that may be chance, p = 0.0625
    few = judge(evaluation(LOW[:16]), evaluation(HIGH[:16], finished=[1.0] * 11 + [0.0] * 5))
    assert (few.outcome, "come to an end" in few.sentence) == ("worth it", False)
    many = judge(
        evaluation([0.0] * 64, finished=[1.0] * 36 + [0.0] * 28),
        evaluation([1.0] * 64, finished=[1.0] * 20 + [0.0] * 44),
    )
    assert many.outcome == "over-optimised"
    assert "the text shows it: fewer answers come to an end (56% to 31%)" in many.sentence
    clear_but_small = judge(evaluation(LOW), evaluation(HIGH, finished=[1.0] * 34 + [0.0] * 6))
    assert clear_but_small.outcome == "worth it"
    assert "Mind that fewer answers come to an end (100% to 85%)" in clear_but_small.sentence


def test_people_s_choices_count_once_for_a_prompt_and_ties_for_neither_side(tmp_path):
    prompts = ["a", "a", "b", "c", "d", "never asked"]
    start, tuned = (evaluation([0.0] * 6, texts=[f"{side}{n}" for n in range(6)], prompts=prompts) for side in "st")
    run = Run.new(tmp_path, "asked").begin(tiny_config())
    for n, better in enumerate(("tuned", "tuned", "start", "tie", "tuned")):
        run.append("choices.jsonl", {"prompt": prompts[n], "start": f"s{n}", "tuned": f"t{n}", "better": better})
    said = people.wins(run, start, tuned)
    assert (said.wins, said.ties, said.losses) == (2, 1, 1)
    assert people.wins(run, tuned, start) is None


def test_a_verdict_is_plain_json():
    verdict = judge(evaluation([0.0]), evaluation([1.0]), (2, evaluation([0.5])), compare([0.0], [1.0]))
    assert verdict.outcome == "too few to tell"
    assert json.loads(json.dumps(verdict.as_dict(), allow_nan=False))["win_rate"]["half_change_95"] is None


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
    assert "prefers the start model (0.00 to -4.00 (-4.00 ± 1.62), better on 20, worse on 20 of 40" in verdict.sentence
    rises = [9.0, -1.0] * 20
    assert "agrees (0.00 to 4.00" in judge(evaluation(LOW, second=LOW), evaluation(HIGH, second=rises)).sentence
    rarely_better_but_by_more = [-0.1] * 26 + [0.3] * 14
    worse = [-0.1] * 26 + [0.1] * 14
    slightly = "slightly prefers the start model, but not significantly"
    for second, said in ((rarely_better_but_by_more, "sees no clear difference"), (worse, slightly)):
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


@pytest.mark.parametrize(
    ("tokens", "kl_price", "advice"),
    [
        # The start model pays 1 nat for 10 tokens: 4 of them save 0.4 nats. The reward has gained 1.
        (
            6.0,
            1.0,
            "Charge the KL in the loss (kl_in: loss, kl_estimator: exact): in the reward, ending early saves 0.40",
        ),
        (6.0, 0.6, "Raise kl_coef, or"),  # 0.24
        (6.0, 0.0, "Raise kl_coef, or"),
        (14.0, 1.0, "Raise kl_coef, or"),
    ],
)
def test_a_higher_price_is_no_advice_where_ending_early_saves_it(tokens, kl_price, advice):
    told = [
        judge(evaluation(LOW, second=HIGH), evaluation(HIGH, second=LOW, tokens=tokens), kl_price=kl_price),
        judge(evaluation(LOW), evaluation(HIGH, surprise=2.0, tokens=tokens), kl_price=kl_price),
    ]
    assert all(verdict.outcome == "over-optimised" and advice in verdict.sentence for verdict in told)


def test_better_more_often_is_not_taken_for_a_gain_that_was_saved():
    often = [0.1] * 33 + [-0.6] * 7  # 33 to 7, yet -0.02 on average
    verdict = judge(evaluation(LOW), evaluation(often, surprise=2.0))
    assert verdict.outcome == "over-optimised"
    assert "Raise kl_coef, or" in verdict.sentence


@pytest.mark.parametrize(("place", "advice"), [("reward", "ending early saves 0.40"), ("loss", "Raise kl_coef, or")])
def test_the_verdict_of_a_run_knows_where_its_kl_was_charged(tmp_path, place, advice):
    estimator = "k1" if place == "reward" else "exact"
    run = Run.new(tmp_path, place).begin(tiny_config(kl_coef=1.0, kl_in=place, kl_estimator=estimator))
    sides = evaluation(LOW, second=HIGH), evaluation(HIGH, second=LOW, tokens=6.0)
    assert advice in write_verdict(Console(quiet=True), run, *sides, None, 1).sentence


def test_the_verdict_knows_a_price_that_has_drifted(tmp_path):
    run = Run.new(tmp_path, "drifted").begin(tiny_config(kl_coef=0.1, adaptive_kl_target=1.0))
    run.path("metrics.jsonl").write_text('{"step": 0, "kl_coef": 0.5}\n{"step": 1, "kl_coef": 1.0}\n')
    sides = evaluation(LOW, second=HIGH), evaluation(HIGH, second=LOW, tokens=6.0)
    assert "ending early saves 0.40" in write_verdict(Console(quiet=True), run, *sides, None, 1).sentence


def test_people_have_the_last_word():
    people = compare([0.0] * 20, [1.0] * 14 + [0.0] * 4 + [-1.0] * 2)
    verdict = judge(evaluation(LOW), evaluation(HIGH, surprise=3.0), human_wins=people)
    assert verdict.outcome == "worth it"
    assert judge(evaluation(HIGH), evaluation(LOW), human_wins=people).outcome == "worth it"  # whatever the reward says
    for_start = compare([0.0] * 20, [1.0] * 2 + [-1.0] * 18)
    against = judge(evaluation(LOW), evaluation(HIGH), human_wins=for_start)
    assert judge(evaluation(LOW), evaluation(LOW), human_wins=for_start).outcome == "failure"
    assert against.outcome == "over-optimised"
    too_few = compare([0.0] * 5, [-1.0] * 5)
    assert judge(evaluation(LOW), evaluation(HIGH), human_wins=too_few).outcome == "worth it"


def test_best_of_n_stands_beside_it():
    verdict = judge(evaluation(LOW), evaluation([0.5] * 40), (4, evaluation(HIGH)))
    assert verdict.best_of_n == {"n": 4, "reward": 1.0, "tuned_beats_it": 0.0}
    assert "best of 4 answers of the start model gives 1.00 at 4 times the cost" in verdict.sentence
