"""One optimizer step: how a batch is cut into passes, and what its statistics are."""

import pytest
import torch

from burnish.models.updates import cut, means_of

SIZES = [(1, 2), (3, 1), (2, 2), (1, 1)]  # tokens of four items, by part


def test_a_cut_by_hand():
    # Largest first: items 1 and 2 (4 tokens each), then 0 (3) and 3 (2).
    # 1 and 2 together are padded to 3 + 2 tokens each: 10. With 0 it would be 15. 0 and 3: 2 * (1 + 2) = 6.
    assert list(cut(SIZES, budget=10)) == [[1, 2], [0, 3]]
    assert list(cut(SIZES, budget=9)) == [[1], [2, 0], [3]]  # 2 and 0: 2 * (2 + 2) = 8; with 3 it would be 12
    assert list(cut(SIZES, budget=100)) == [[1, 2, 0, 3]]


@pytest.mark.parametrize(("budget", "most"), [(0, None), (100, 1)])
def test_one_item_is_a_pass_however_small_the_budget(budget, most):
    assert list(cut(SIZES, budget, most)) == [[1], [2], [0], [3]]
    assert list(cut([], budget, most)) == []


def test_what_items_share_counts_once_and_keeps_them_together():
    sizes = [(6, 1), (6, 2), (2, 1), (6, 1), (2, 1)]
    shared = [0, 0, 1, 0, 1]
    # 0, 1 and 3 share six tokens: 6 + 3 * 2 = 12. 2 and 4 share two: 2 + 2 * 1 = 4. All: 2 * 6 + 5 * 2 = 22.
    assert list(cut(sizes, budget=22, shared=shared)) == [[0, 1, 3, 2, 4]]
    assert list(cut(sizes, budget=21, shared=shared)) == [[0, 1, 3], [2, 4]]
    # 11 is too small for the first three, so they are cut: 6 + 2 * 2 = 10, and 6 + 1 = 7
    assert list(cut(sizes, budget=11, shared=shared)) == [[0, 1], [3], [2, 4]]
    assert list(cut(sizes, budget=100, most=2, shared=shared)) == [[0, 1], [3], [2, 4]]


def test_means_by_hand():
    first = {"loss": (torch.tensor(3.0), 2), "accuracy": (1, 1), "never": (0.0, 0)}
    second = {"loss": (torch.tensor(1.0), 2), "accuracy": (0, 3), "never": (0.0, 0)}
    assert means_of([first, second]) == {"loss": 1.0, "accuracy": 0.25}  # (3 + 1) / 4; (1 + 0) / 4; nothing of nothing
