"""The buffer deals out every sequence once, in a fresh order, in micro-batches with little padding."""

import pytest
import torch

from burnish import ExperienceBuffer, InputError, SAPairs
from burnish.ppo.experience_buffer import pass_lengths
from tiny import PROMPTS, passes_of, perturb, tiny_trainer


def table(lengths, first_id=0):
    """Responses of given lengths; every token of response i carries the advantage first_id + i."""
    return SAPairs.from_dicts(
        [{"prompt_id": i, "advantage": float(first_id + i)} for i, n in enumerate(lengths) for _ in range(n)]
    )


def ids_in(mini_batch):
    passes = passes_of(mini_batch, 100)
    return [int(pairs["advantage"][row, 0]) for pairs in passes for row in range(pairs.mask.shape[0])]


def test_every_sequence_comes_once_per_epoch():
    buffer = ExperienceBuffer()
    buffer.store(table([3, 1, 4, 1, 5]))
    buffer.store(table([9, 2, 6], first_id=5))
    batches = list(buffer.mini_batches(3))
    assert [len(ids_in(b)) for b in batches] == [3, 3, 2]
    assert sorted(i for b in batches for i in ids_in(b)) == list(range(8))


def test_each_epoch_has_its_own_order_and_the_seed_decides_it():
    buffer = ExperienceBuffer()
    buffer.store(table([2] * 20))
    generator = torch.Generator().manual_seed(0)
    first, second = ([ids_in(b) for b in buffer.mini_batches(4, generator=generator)] for _ in range(2))
    again = [ids_in(b) for b in buffer.mini_batches(4, generator=torch.Generator().manual_seed(0))]
    assert first != second
    assert first == again


def test_micro_batches_keep_to_the_token_budget():
    buffer = ExperienceBuffer()
    buffer.store(table([3, 1, 4, 1, 5, 9, 2, 6, 5, 3]))
    for max_tokens in (1, 9, 12, 30):
        for pairs in passes_of(next(iter(buffer.mini_batches(None))), max_tokens):
            rows, width = pairs.mask.shape
            assert rows * width <= max_tokens or rows == 1


@pytest.mark.parametrize("scope", ["response", "sequence"])
def test_token_budget_counts_prompts_and_padding(scope):
    trainer = tiny_trainer(adapter_scope=scope, max_new_tokens=20)
    trainer.base.head.data[256] *= 3  # responses of very different lengths
    pairs, _ = trainer.generator.generate_sequences(PROMPTS * 4, torch.Generator().manual_seed(0))
    buffer = ExperienceBuffer()
    buffer.store(pairs)
    for max_tokens in (60, 100, 200):
        micro = passes_of(next(iter(buffer.mini_batches(None))), max_tokens)
        assert sum(p.mask.shape[0] for p in micro) == 32
        for part in micro:
            assert part.context.suffix_ids.numel() <= max_tokens or part.mask.shape[0] == 1


def test_token_budget_counts_what_a_prefix_costs():
    """Prompts of 8 tokens, the last of which is computed; two tokens of the other 7 count as one computed."""
    trainer = tiny_trainer(max_new_tokens=20)
    pairs, _ = trainer.generator.generate_sequences(["why not:"] * 16, torch.Generator().manual_seed(0))
    buffer = ExperienceBuffer()
    buffer.store(pairs)
    num_parts = []
    for prefix_cost in (0.0, 0.5):
        micro = passes_of(next(iter(buffer.mini_batches(None, prefix_cost=prefix_cost))), 60)
        assert sum(p.mask.shape[0] for p in micro) == 16
        for part in micro:
            rows, width = part.context.suffix_ids.shape
            assert part.context.start == 7
            assert rows * (7 * prefix_cost + width) <= 60 or rows == 1
        num_parts.append(len(micro))
    assert num_parts[0] < num_parts[1]


def test_micro_batch_size_is_a_limit_too():
    buffer = ExperienceBuffer()
    buffer.store(table([3] * 10))
    assert [p.mask.shape[0] for p in passes_of(next(iter(buffer.mini_batches(None))), 1000, most=4)] == [4, 4, 2]


def test_similar_lengths_share_a_micro_batch():
    buffer = ExperienceBuffer()
    buffer.store(table([1, 30] * 8))
    micro = passes_of(next(iter(buffer.mini_batches(None))), 240)
    padding = sum(int((~p.mask).sum()) for p in micro) / sum(p.mask.numel() for p in micro)
    assert padding < 0.1


def test_moments_are_over_all_stored_tokens():
    buffer = ExperienceBuffer()
    buffer.store(table([2, 1]))  # 0 0 1
    buffer.store(table([1], first_id=3))  # 3
    mean, variance = buffer.moments("advantage")
    assert mean.item() == pytest.approx(1.0)  # (0 + 0 + 1 + 3) / 4
    assert variance.item() == pytest.approx(1.5)  # (1 + 1 + 0 + 4) / 4


def test_cost_of_a_sequence_is_what_a_training_pass_computes():
    for scope in ("response", "sequence"):
        trainer = tiny_trainer(adapter_scope=scope)
        pairs, _ = trainer.generator.generate_sequences(PROMPTS, torch.Generator().manual_seed(0))
        for row in range(len(PROMPTS)):
            alone = pairs.select(torch.tensor([row]))
            _, prompt, response = pass_lengths(pairs, pairs.context)
            assert alone.context.suffix_ids.shape[1] == prompt[row] + response[row]


def test_memory_counts_table_and_context():
    trainer = tiny_trainer()
    perturb(trainer)
    pairs, _ = trainer.generator.generate_sequences(PROMPTS, torch.Generator().manual_seed(0))
    buffer = ExperienceBuffer()
    buffer.store(pairs)
    assert buffer.nbytes == pairs.nbytes + pairs.context.nbytes
    buffer.clear()
    assert buffer.nbytes == 0
    assert len(buffer) == 0


def test_empty_buffer_says_so():
    with pytest.raises(InputError, match="store a rollout first"):
        next(ExperienceBuffer().mini_batches(4))


def test_the_longest_micro_batch_comes_first():
    buffer = ExperienceBuffer()
    buffer.store(table([2, 9, 4, 7]))
    (mini_batch,) = buffer.mini_batches(None)
    assert [pairs.lengths.tolist() for pairs in passes_of(mini_batch, 100, most=2)] == [[9, 7], [4, 2]]
