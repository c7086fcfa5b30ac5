"""A prompt that several sequences read is stored once, and everything comes out as if each had its own copy."""

import pytest
import torch

from burnish.decoder.shared_prefix import SharedPrefix
from burnish.sa_pairs.padding import left_padded, right_padded
from tiny import encoded, generate, perturb, tiny_trainer

PROMPTS = ["a longer prompt:", "short:", ":", "another one:"]
COPIES = [0, 2, 1, 0, 0, 2, 3]  # uneven, not in order, one prompt alone; in response scope ":" has an empty prefix


def context_of(trainer, prompts, responses):
    (ids, mask), (action, _) = left_padded(prompts), right_padded(responses)
    return trainer.base.build_context(ids, mask, action)


@pytest.fixture(params=["all", 1], ids=["no trunk", "trunk"])
def trainer(request):
    trainer = tiny_trainer(layers=3, lora_layers=request.param, top_k=0, top_p=1.0)
    perturb(trainer)
    return trainer


@pytest.fixture
def sequences(trainer):
    known = encoded(trainer, PROMPTS)
    generator = torch.Generator().manual_seed(0)
    responses = [torch.randint(0, 256, (int(n),), generator=generator).tolist() for n in (5, 3, 4, 1, 5, 2, 5)]
    return [known[n] for n in COPIES], responses


def test_one_copy_gives_the_states_and_gradients_of_many(trainer, sequences):
    prompts, responses = sequences
    context = context_of(trainer, prompts, responses)
    assert context.prefix.shape[2] == 4
    assert context.prefix_rows.tolist() == [0, 1, 2, 0, 0, 1, 3]
    parameters = trainer.policy.parameters()

    def outcome(states):
        weights = [torch.randn(5, 32, generator=torch.Generator().manual_seed(n)) for n in range(7)]
        loss = sum((w[: len(r)] * s[: len(r)]).sum() for w, s, r in zip(weights, states, responses, strict=True))
        return torch.autograd.grad(loss, parameters)

    together = trainer.base.state_hidden("policy", context)
    alone = [
        trainer.base.state_hidden("policy", context_of(trainer, [p], [r]))[0]
        for p, r in zip(prompts, responses, strict=True)
    ]
    for row, (state, response) in enumerate(zip(alone, responses, strict=True)):
        torch.testing.assert_close(together[row, : len(response)], state, atol=1e-5, rtol=1e-4)
    for ours, theirs in zip(outcome(together), outcome(alone), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4 * float(theirs.abs().max()), rtol=1e-4)


def test_some_of_the_sequences_read_as_before(trainer, sequences):
    prompts, responses = sequences
    context = context_of(trainer, prompts, responses)
    whole = trainer.base.state_hidden("policy", context)
    for rows, prefixes in (([1, 3, 5, 4], 2), ([6, 2, 0], 3), ([0, 3, 4], 1), ([2], 1)):
        width = max(len(prompts[row]) for row in rows)
        cut = context.rows(torch.tensor(rows), width, 5)
        assert cut.prefix.shape[2] == prefixes
        states = trainer.base.state_hidden("policy", cut)
        for place, row in enumerate(rows):
            own = slice(0, len(responses[row]))
            torch.testing.assert_close(states[place, own], whole[row, own], atol=1e-5, rtol=1e-4)


def test_decoding_with_one_copy_says_what_decoding_alone_says(trainer):
    """Greedy, and some responses end early, so that the batch becomes smaller on the way."""
    from burnish.rollout.sampling import Sampler

    trainer.base.head.data[256] *= 2.5
    known = encoded(trainer, PROMPTS)
    prompts = [known[n] for n in COPIES]
    greedy = Sampler(greedy=True)
    together = generate(trainer.policy, prompts, 12, greedy)
    alone = [generate(trainer.policy, [p], 12, greedy) for p in prompts]
    lengths = together.mask.sum(1).tolist()
    assert lengths == [int(one.mask.sum()) for one in alone]
    assert len(set(lengths)) > 1
    for row, one in enumerate(alone):
        assert together.action[row, : lengths[row]].tolist() == one.action[0].tolist()
        torch.testing.assert_close(together.logprob[row, : lengths[row]], one.logprob[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_by_hand_over_both_sets(dtype):
    """Against one softmax over prefix and own keys, written out."""
    torch.manual_seed(0)
    entries = torch.randn(1, 2, 2, 3, 4, 8)  # [layers, 2, prefixes, heads, S, D]
    rows = torch.tensor([1, 0, 1])
    key_mask = torch.tensor([[True] * 4, [False, False, True, True]])
    query, key, value = torch.randn(3, 3, 5, 8), torch.randn(3, 3, 6, 8), torch.randn(3, 3, 6, 8)
    mask = torch.zeros(3, 1, 5, 6)
    mask[:, :, 0, 3:] = -torch.inf
    query, key, value = (x.to(dtype).requires_grad_() for x in (query, key, value))
    shared = SharedPrefix(entries.to(dtype), rows, key_mask)
    ours = shared.attention(query, key, value, mask.to(dtype), 0.5, 0)
    before = torch.zeros(2, 4).masked_fill(~key_mask, -torch.inf)[rows][:, None, None].expand(-1, -1, 5, -1)
    keys, values = (
        torch.cat([one[rows], own.float()], dim=2)
        for one, own in zip(entries.to(dtype).float()[0], (key, value), strict=True)
    )
    scores = query.float() @ keys.transpose(2, 3) * 0.5 + torch.cat([before, mask], dim=3)
    theirs = scores.softmax(-1) @ values
    close = {"atol": 1e-5, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 0.03, "rtol": 0.03}
    torch.testing.assert_close(ours.float(), theirs, **close)
    weights = torch.randn(theirs.shape)
    ours_grad = torch.autograd.grad((ours.float() * weights).sum(), (query, key, value))
    theirs_grad = torch.autograd.grad((theirs * weights).sum(), (query, key, value))
    for a, b in zip(ours_grad, theirs_grad, strict=True):
        torch.testing.assert_close(a.float(), b.float(), **close)
