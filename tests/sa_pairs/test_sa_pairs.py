"""The table of SA pairs and its rows are two views of the same numbers."""

import pytest
import torch

from burnish import InputError, SAPairs
from tiny import PROMPTS, tiny_trainer

ROWS = [
    {"prompt_id": 0, "position": 0, "state": [1, 2], "action": 3, "logprob_policy": -1.0, "logprob_ref": -1.5},
    {"prompt_id": 0, "position": 1, "state": [1, 2, 3], "action": 4, "logprob_policy": -2.0, "logprob_ref": -1.0},
    {"prompt_id": 1, "position": 0, "state": [9], "action": 8, "logprob_policy": -0.5, "logprob_ref": -0.5},
]


def test_rows_survive_the_way_through_the_table():
    assert SAPairs.from_dicts(ROWS).to_dicts() == ROWS


def test_table_is_right_padded_and_prompts_left_padded():
    pairs = SAPairs.from_dicts(ROWS)
    assert pairs.mask.tolist() == [[True, True], [True, False]]
    assert pairs["action"].tolist() == [[3, 4], [8, 0]]
    assert pairs.prompt_ids.tolist() == [[1, 2], [0, 9]]
    assert pairs.prompt_mask.tolist() == [[True, True], [False, True]]


def test_rows_may_come_in_any_order():
    assert SAPairs.from_dicts(ROWS[::-1]).to_dicts() == ROWS


def test_table_is_a_sequence():
    pairs = SAPairs.from_dicts(ROWS)
    assert len(pairs) == 3
    assert pairs[2] == pairs[-1] == ROWS[2]
    assert pairs[0:2] == ROWS[0:2]
    assert list(pairs) == ROWS
    with pytest.raises(IndexError):
        pairs[3]


def test_columns_are_zero_outside_the_mask_and_detached():
    value = torch.ones(2, 2, requires_grad=True)
    pairs = SAPairs.from_dicts(ROWS).with_columns(value=value * 7)
    assert pairs["value"].tolist() == [[7, 7], [7, 0]]
    assert not pairs["value"].requires_grad


def test_adding_a_column_leaves_the_old_table_alone():
    pairs = SAPairs.from_dicts(ROWS)
    pairs.with_columns(value=torch.ones(2, 2))
    assert "value" not in pairs


def test_missing_column_names_the_call_that_adds_it():
    with pytest.raises(InputError, match=r"no column 'advantage' yet; call GAEAdvantage\.compute_gae_advantages first"):
        SAPairs.from_dicts(ROWS)["advantage"]


def test_unknown_names_are_refused_with_the_nearest():
    pairs = SAPairs.from_dicts(ROWS)
    with pytest.raises(InputError, match="did you mean 'reward'"):
        pairs.with_columns(rewards=torch.zeros(2, 2))
    with pytest.raises(InputError, match="did you mean 'action'"):
        SAPairs.from_dicts([{"acton": 3}])


def test_wrong_shape_is_refused():
    with pytest.raises(InputError, match=r"\(2, 3\), the table is \(2, 2\)"):
        SAPairs.from_dicts(ROWS).with_columns(value=torch.zeros(2, 3))


def test_pairs_with_different_keys_are_refused():
    with pytest.raises(InputError, match=r"SA pair 1.*'kl'"):
        SAPairs.from_dicts([{"kl": 1.0}, {"reward": 1.0}])


def test_a_generated_table_survives_as_plain_rows():
    trainer = tiny_trainer()
    pairs, _ = trainer.generator.generate_sequences(PROMPTS[:3], torch.Generator().manual_seed(0))
    again = SAPairs.from_dicts(pairs.to_dicts())
    assert again.to_dicts() == pairs.to_dicts()
    for number, prompt in enumerate(PROMPTS[:3]):
        assert pairs.rows_of(number)[0]["state"] == trainer.base.tokenizer(prompt)["input_ids"]


def test_selected_responses_keep_their_numbers():
    trainer = tiny_trainer()
    pairs, _ = trainer.generator.generate_sequences(PROMPTS, torch.Generator().manual_seed(1))
    chosen = pairs.select(torch.tensor([2, 5]))
    for new, old in enumerate((2, 5)):
        got, expected = chosen.rows_of(new), pairs.rows_of(old)
        assert [r | {"prompt_id": 0} for r in got] == [r | {"prompt_id": 0} for r in expected]
    assert list(pairs.numbers) == list(range(8))
    assert chosen.numbers == [2, 5]
    assert chosen.select(torch.tensor([1])).numbers == [5]  # also when cut out of what was cut out


def test_no_row_is_walked_inside_a_step(monkeypatch):
    """Rows are for people: a step that made one for every token would take longer than the model."""

    def walked(*_):
        raise AssertionError("a row of the table was asked for")

    for name in ("__iter__", "row", "rows_of", "to_dicts", "_row_at", "from_dicts"):
        monkeypatch.setattr(SAPairs, name, walked)
    assert len(tiny_trainer().ppo_step(PROMPTS)["rewards"]) == len(PROMPTS)


def test_in_asks_for_columns_and_a_text_is_no_column():
    pairs = SAPairs.from_dicts([{"advantage": 1.0, "mine": 2.0}])
    assert "advantage" in pairs
    assert "value" not in pairs
    with pytest.raises(InputError, match="SA pair 1: 'said' is 'x', not a number"):
        SAPairs.from_dicts([{"said": 1.0}, {"said": "x"}])
