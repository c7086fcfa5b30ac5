"""Credit against the truth: values of states, found out by continuing from them."""

import pytest
import torch

from burnish.errors import RewardFailedError
from burnish.evaluation import credit as module
from burnish.evaluation.credit import State, _credited, _earned, _spread, agreement, foreseeable, measure_credit
from burnish.rollout.sampling import Begun
from burnish.show.credit import credit_sentence, unmeasured_sentence
from tiny import PROMPTS, tiny_trainer


def by_first_letter(prompts, responses):
    """Decided by the first token alone."""
    return [float(ord(r[0]) % 5) if r else 0.0 for r in responses]


def test_responses_begin_with_what_is_given():
    begun = Begun(tokens=torch.tensor([[3, 4], [5, -1], [-1, -1]]), greedy=True)
    logits = torch.zeros(3, 9)
    logits[:, 7] = 1.0
    numbers = torch.arange(3)
    assert begun(logits, None, numbers).action.tolist() == [3, 5, 7]
    assert begun(logits[1:], None, numbers[1:]).action.tolist() == [7, 7]  # the first response has left the batch
    assert begun(logits, None, numbers).action.tolist() == [7, 7, 7]


def test_agreement_by_hand():
    found, owners = [1.0, 2.0, 3.0, 6.0], [0, 0, 1, 2]
    perfect = agreement(found, found, [0.0] * 4, owners)
    assert (perfect.correlation, perfect.slope, perfect.best) == pytest.approx((1, 1, 1))
    # half the size: the truth changes by 2 where the prediction changes by 1. The variance of what was found is 3.5; if
    # 1.75 of it is noise, half is signal, and even the truth would correlate with it by 0.5 ** 0.5 only.
    half = agreement([x / 2 for x in found], found, [1.75] * 4, owners)
    assert (half.correlation, half.slope, half.best) == pytest.approx((1, 2, 0.5**0.5))
    assert (half.predicted, half.found) == (1.5, 3.0)
    flat = agreement([1.0] * 4, found, [0.0] * 4, owners)
    assert (flat.correlation, flat.slope) == (0, 0)


def test_what_states_decide_by_hand():
    # Means 1 and 5: their variance is 8, of which 1 is noise, since two draws with variance 2 have a mean with variance
    # 1. So 7 is between the states and 2 within them.
    found = foreseeable([[0.0, 2.0], [4.0, 6.0], [9.0]], [0, 1, 2])  # one draw says nothing of its state's scatter
    assert found.share == pytest.approx(7 / 9)
    assert found.low <= found.share <= found.high
    assert foreseeable([[1.0, 1.0], [3.0, 3.0]], [0, 1]).share == 1  # nothing is left to chance
    assert foreseeable([[0.0, 4.0], [1.0, 3.0]], [0, 1]).share == 0  # nothing is known before
    assert foreseeable([[0.0], [1.0]], [0, 1]).share == 0


def test_states_after_the_letter_that_decides_know_more_than_those_before_it(trainer):
    """The first letter decides the reward: before it little is known, after it everything."""
    late = measure_credit(trainer, PROMPTS, positions=6, continuations=8).foreseeable
    first = [State(row, 0) for row in range(len(PROMPTS))]
    pairs = _credited(trainer, PROMPTS, torch.Generator().manual_seed(1))
    earned = _earned(trainer, PROMPTS, pairs, first, 8, torch.Generator().manual_seed(2))
    early = foreseeable([earned[s] for s in first], range(len(first)))
    assert late.share > early.share + 0.3


def test_places_are_spread_evenly_and_exist():
    assert _spread(8, 4) == [1, 3, 5, 7]
    assert _spread(2, 4) == [0, 1]
    assert _spread(1, 4) == [0]


@pytest.fixture(scope="module")
def trainer():
    trainer = tiny_trainer(by_first_letter, gamma=1.0, lam=1.0, kl_coef=0.0, top_k=0, top_p=1.0)
    trainer.generator.agree_on_invocation(PROMPTS)
    return trainer


def test_continuations_keep_what_was_said_and_vary_what_was_not(trainer):
    pairs = _credited(trainer, PROMPTS, torch.Generator().manual_seed(1))
    states = [State(row, position) for row in (0, 3) for position in (0, 1, 4)]
    earned = _earned(trainer, PROMPTS, pairs, states, 12, torch.Generator().manual_seed(2))
    for state, returns in earned.items():
        own = float(pairs["reward"][state.response].sum())
        assert len(returns) == 12
        if state.position:  # all is decided by then
            assert returns == [own] * 12
        else:
            assert len(set(returns)) > 1


def test_a_critic_that_knows_the_truth_is_found_out(trainer, monkeypatch):
    """What the first letter brings is known; a critic that says so agrees, one that says the opposite does not."""

    def knows(sign):
        def values(sa_pairs):
            letters = trainer.generator.decode(sa_pairs)
            score = torch.tensor(by_first_letter([], letters))
            known = torch.where(torch.arange(sa_pairs.mask.shape[1]) > 0, score[:, None], 2.0)
            return sign * known * sa_pairs.mask

        return values

    found = {}
    for sign in (1, -1):
        monkeypatch.setattr(trainer.value_model, "values", knows(sign))
        found[sign] = measure_credit(trainer, PROMPTS, positions=6, continuations=24).agreements
    assert found[1]["value"].correlation > 0.8
    assert found[1]["td_error"].correlation > 0.6  # what a prompt is worth before its first letter, it does not know
    assert found[-1]["value"].correlation < -0.6
    assert found[-1]["td_error"].correlation < 0


def test_without_a_critic_the_advantages_are_judged():
    trainer = tiny_trainer(by_first_letter, recipe="rloo", kl_coef=0.0)
    trainer.generator.agree_on_invocation(PROMPTS)
    credit = measure_credit(trainer, PROMPTS[:3], positions=2, continuations=4)
    assert set(credit.agreements) == {"advantage"}
    assert credit.agreements["advantage"].count == 6


def test_a_token_of_which_one_side_is_unknown_is_left_out(monkeypatch):
    """Every response earns 5, so no token brings anything; a state that is worth nothing would look like -5."""
    trainer = tiny_trainer(lambda prompts, texts: [5.0] * len(texts), gamma=1.0, kl_coef=0.0)
    trainer.generator.agree_on_invocation(PROMPTS)
    all_known = measure_credit(trainer, PROMPTS, positions=3, continuations=2).agreements

    def without(forgotten):
        return lambda *given: {s: own for s, own in _earned(*given).items() if not forgotten(s)}

    monkeypatch.setattr(module, "_earned", without(lambda state: state.position == 2 and state.response < 3))
    found = measure_credit(trainer, PROMPTS, positions=3, continuations=2).agreements
    assert found["td_error"].found == pytest.approx(0, abs=1e-5)
    assert found["value"].count < all_known["value"].count
    assert found["td_error"].count < all_known["td_error"].count
    monkeypatch.setattr(module, "_earned", without(lambda state: True))
    with pytest.raises(RewardFailedError, match="too few continuations could be scored"):
        measure_credit(trainer, PROMPTS, positions=3, continuations=2)


def test_the_sentence_says_what_was_found():
    def column(r, low):
        return {"correlation": r, "low": low, "high": 0.9}

    agreements = {"value": column(0.7, 0.5), "td_error": column(0.3, 0.1), "advantage": column(0.2, -0.1)}
    said = credit_sentence({"agreements": agreements, "responses": 16, "continuations": 8})
    assert "values 0.70 (0.50 to 0.90), to be trusted on the whole" in said
    assert "TD errors 0.30 (0.10 to 0.90), a hint, no more" in said
    assert "advantages 0.20 (-0.10 to 0.90), not to be told from noise" in said
    share = {"share": 0.24, "low": 0.1, "high": 0.42}
    more = credit_sentence({"agreements": agreements, "responses": 16, "continuations": 8, "foreseeable": share})
    assert more.startswith(said)
    assert "24% (10% to 42%) is decided by what was said before: more than that no value model could" in more
    rows = [{"explained_variance": e} for e in (0.9, 0.0, 0.03, 0.04, 0.02, 0.01)]
    assert "explained variance 0.01), so the colours by advantage and TD error are mostly noise" in unmeasured_sentence(
        [*rows[:4], *rows[5:]], "run"
    )
    assert "explains 60% of the returns' variance" in unmeasured_sentence([{"explained_variance": 0.6}], "run")
    assert "no value model" in unmeasured_sentence([{}], "run")
