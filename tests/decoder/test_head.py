"""Logits with a bias or a soft cap: every quantity of a state, and its gradient, is that of the plain formula."""

import pytest
import torch

from burnish.decoder.head import (
    Head,
    against_reference,
    entropy_of_states,
    kl_from_states,
    kl_of_states,
    selected_logprobs,
)
from burnish.maths import entropy, exact_kl

KEPT = torch.tensor([[0, 3, 5], [2, 4, -1], [1, 0, 2]], dtype=torch.int32)
ACTION = torch.tensor([3, 4, 0])
WEIGHTS = torch.tensor([1.0, -2.0, 0.5])


@pytest.fixture(params=["plain", "bias", "cap", "both"])
def head(request):
    g = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(6, 4, generator=g), torch.randn(6, generator=g)
    bent = request.param in ("cap", "both")
    return Head(weight, bias if request.param in ("bias", "both") else None, 1.5 if bent else None)


def states(seed=1):
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def logprobs(hidden, head, kept):
    z = hidden @ head.weight.T + (0.0 if head.bias is None else head.bias)
    z = (z if head.cap is None else head.cap * torch.tanh(z / head.cap)) / 0.7
    if kept is not None:
        z = z.gather(1, kept.long().clamp(min=0)).masked_fill(kept < 0, -torch.inf)
    return z.log_softmax(-1)


def same(ours, theirs, hidden):
    torch.testing.assert_close(ours, theirs)
    (mine,), (plain,) = (torch.autograd.grad((x * WEIGHTS).sum(), hidden, retain_graph=True) for x in (ours, theirs))
    torch.testing.assert_close(mine, plain)


@pytest.mark.parametrize("kept", [None, KEPT], ids=["all", "kept"])
def test_logprobs(head, kept):
    hidden = states()
    place = ACTION[:, None] if kept is None else (kept == ACTION[:, None]).long().argmax(1, keepdim=True)
    expected = logprobs(hidden, head, kept).gather(1, place).squeeze(1)
    same(selected_logprobs(hidden, head, ACTION, kept, 0.7), expected, hidden)


@pytest.mark.parametrize("kept", [None, KEPT], ids=["all", "kept"])
def test_entropy(head, kept):
    hidden = states()
    plain = logprobs(hidden, head, kept)
    p = plain.exp()
    expected = -(p * plain.masked_fill(p == 0, 0.0)).sum(-1)
    same(entropy_of_states(hidden, head, kept, 0.7), expected, hidden)
    torch.testing.assert_close(entropy(plain), expected)


def test_kl(head):
    hidden, reference = states(), states(2).detach()
    expected = exact_kl(logprobs(hidden, head, None), logprobs(reference, head, None))
    same(kl_of_states(hidden, reference, head, 0.7), expected, hidden)


def test_kl_of_a_teacher(head):
    hidden, teacher = states(), states(2).detach()
    expected = exact_kl(logprobs(teacher, head, None), logprobs(hidden, head, None))
    same(kl_from_states(hidden, teacher, head, 0.7), expected, hidden)


def test_reference(head):
    hidden, reference = states().detach(), states(2).detach()
    whole = logprobs(reference, head, None)
    logprob, kl = against_reference(hidden, reference, head, ACTION, KEPT, 0.7)
    torch.testing.assert_close(logprob, whole.gather(1, ACTION[:, None]).squeeze(1))
    torch.testing.assert_close(kl, exact_kl(logprobs(hidden, head, KEPT), whole.gather(1, KEPT.long().clamp(min=0))))
