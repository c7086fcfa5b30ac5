"""Updates: the same gradients however a mini-batch is cut, and nothing bad reaches a weight."""

import math

import pytest
import torch

from burnish import BurnishError, DivergedError, SAPairs
from burnish.decoder.head import Head, entropy_of_states
from burnish.models.updates import Updates
from burnish.ppo.experience_buffer import ExperienceBuffer
from burnish.ppo.training import PolicyLoss, ValueLoss
from tiny import PROMPTS, perturb, tiny_trainer

MANY = [*PROMPTS, *(f"and {prompt}" for prompt in PROMPTS)]


def finished_pairs(trainer, prompts=MANY, seed=0):
    """SA pairs with every column, of the policy as it is."""
    pairs, texts = trainer.generator.generate_sequences(prompts, torch.Generator().manual_seed(seed))
    rewards = trainer.reward_computer.compute_rewards(prompts, texts)
    pairs = trainer.kl_divergence.add_kl_to_sa_pairs(pairs)
    pairs = trainer.reward_adjuster.adjust_rewards_with_kl(pairs, rewards, 0.1)
    pairs = trainer.value_adder.add_values_to_sa_pairs(pairs)
    pairs = trainer.td_error.compute_td_errors(pairs)
    pairs = trainer.gae_advantage.compute_gae_advantages(pairs)
    return trainer.return_calculator.add_reward_to_go(pairs)


def gradients(trainer, pairs, role, micro_batch_size=None):
    buffer = ExperienceBuffer()
    buffer.store(pairs)
    model = trainer.policy if role == "policy" else trainer.value_model
    for p in model.parameters():
        p.grad = None
    if role == "policy":
        loss = PolicyLoss(0.2)
        loss_of = lambda p: loss(p, trainer.policy.logprobs(p))  # noqa: E731
    else:
        loss = ValueLoss(0.2)
        loss_of = lambda p: loss(p, trainer.value_model.values(p))  # noqa: E731
    mini_batch = next(iter(buffer.mini_batches(None, torch.Generator().manual_seed(0))))
    config = trainer.config.model_copy(update={"micro_batch_size": micro_batch_size, "activation_mb": 10**6})
    passes = []

    def counted(part):
        passes.append(part)
        return loss_of(part)[0], {"loss": (0.0, 1)}

    Updates(model, config, 1e-3, max_grad_norm=math.inf).gradients(mini_batch, counted)
    return torch.cat([p.grad.flatten() for p in model.parameters()]), len(passes)


@pytest.mark.parametrize("scope", ["response", "sequence"])
@pytest.mark.parametrize("role", ["policy", "value"])
def test_any_micro_batch_size_gives_the_same_gradients(scope, role):
    trainer = tiny_trainer(layers=3, lora_layers=2, adapter_scope=scope)
    perturb(trainer, scale=0.1)
    pairs = finished_pairs(trainer)
    whole, pieces = gradients(trainer, pairs, role)
    assert pieces == 1
    for size in (1, 3, 5):
        cut, pieces = gradients(trainer, pairs, role, micro_batch_size=size)
        assert pieces == math.ceil(16 / size)
        torch.testing.assert_close(cut, whole, atol=1e-5, rtol=1e-5)
    assert whole.abs().max() > 1e-3


def test_wider_padding_changes_no_gradient():
    """The same responses beside a much longer prompt and response: only the padding differs."""
    trainer = tiny_trainer(adapter_scope="sequence")
    perturb(trainer, scale=0.1)
    pairs = finished_pairs(trainer, [*PROMPTS, "a very much longer prompt than all the others are, by far:"])
    rows = torch.arange(len(PROMPTS))
    narrow = pairs.select(rows)
    assert narrow.prompt_ids.shape[1] < pairs.prompt_ids.shape[1]
    loss = PolicyLoss(0.2)
    results = []
    for p, chosen in ((narrow, slice(None)), (pairs, rows)):
        logprob = trainer.policy.logprobs(p)
        summed = loss(p, logprob)[0] if p is narrow else (loss_rows(loss, p, logprob))[chosen].sum()
        results.append(torch.autograd.grad(summed, trainer.policy.parameters()))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def loss_rows(loss, pairs, logprob):
    from burnish.maths import policy_ratio, ppo_clip_loss

    ratio = policy_ratio(logprob, pairs["logprob"])
    return (ppo_clip_loss(ratio, pairs["advantage"], loss.clip_epsilon) * pairs.mask).sum(1)


def test_micro_batch_size_changes_no_result_of_a_step():
    texts, losses = [], []
    for size in (None, 1, 3):
        trainer = tiny_trainer(micro_batch_size=size)
        results = [trainer.ppo_step(PROMPTS) for _ in range(2)]
        texts.append([r["generated_texts"] for r in results])
        losses.append([r[k] for r in results for k in ("policy_loss", "value_loss")])
    assert texts[0] == texts[1] == texts[2]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert losses[0] == pytest.approx(losses[2], abs=1e-5)


def test_a_pass_holds_as_many_responses_as_activation_mb_allows(monkeypatch):
    """A megabyte is 240 tokens of 4352 bytes; a token of the prefix takes 512."""
    parts = {}
    backward = Updates._backward

    def recorded(self, given, weight, loss_of):
        parts.setdefault(self.role.adapter, []).append(given)
        return backward(self, given, weight, loss_of)

    monkeypatch.setattr(Updates, "_backward", recorded)
    trainer = tiny_trainer(activation_mb=1, epochs=1, max_new_tokens=40)
    assert (trainer.base.activation_bytes, trainer.base.prefix_activation_bytes) == (4352, 512)
    trainer.ppo_step(["x" * 100 + ":"] * 16)

    def megabytes(rows, width):
        return rows * (width * 4352 + 100 * 512) / 2**20

    assert len(parts) == 2  # of the value model and of the policy
    for mini_batch in parts.values():
        sizes = [part.context.suffix_ids.shape for part in mini_batch]
        assert sum(rows for rows, _ in sizes) == 16
        assert all(megabytes(rows, width) <= 1 for rows, width in sizes)
        assert all(megabytes(rows + 1, width) > 1 for rows, width in sizes[:-1])  # one more would not have fitted


def test_first_ratio_is_one():
    results = tiny_trainer().ppo_step(PROMPTS)
    assert results["first_ratio_error"] < 1e-4


def test_a_first_ratio_that_is_not_quite_one_is_told():
    trainer = tiny_trainer()
    pairs = finished_pairs(trainer)
    trainer.model_trainer.train_policy_model(pairs.with_columns(logprob=pairs["logprob"] - 5e-5))
    assert trainer.model_trainer.metrics["first_ratio_error"] == pytest.approx(5e-5, abs=2e-5)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (lambda mask: 0.0003 * mask, r"0\.0003 on average \(limit 0\.0001\)"),  # a little, everywhere
        (
            lambda mask: 0.0012 * (mask.cumsum(0) == 3) * (torch.arange(6) == 1),
            "0.0012 for token 1 of response",
        ),  # once
    ],
)
def test_rollout_that_training_cannot_reproduce_is_an_error(error, message):
    trainer = tiny_trainer()
    pairs = finished_pairs(trainer)
    wrong = pairs.with_columns(logprob=pairs["logprob"] - error(pairs.mask.float()))
    with pytest.raises(BurnishError, match=message):
        trainer.model_trainer.train_policy_model(wrong)


def test_pairs_of_an_older_policy_are_not_held_to_ratio_one():
    trainer = tiny_trainer(learning_rate=1e-2)
    pairs = finished_pairs(trainer)
    trainer.model_trainer.train_policy_model(pairs)
    trainer.model_trainer.train_policy_model(pairs)  # now off-policy: ratios are not 1, and that is no error


def test_number_of_optimizer_steps_is_epochs_times_mini_batches():
    trainer = tiny_trainer(batch_size=8, mini_batch_size=4, epochs=3)
    assert trainer.config.optimizer_steps_per_ppo_step == 6
    results = trainer.ppo_step(PROMPTS)
    assert results["policy_updates"] == results["value_updates"] == 6


def test_target_kl_ends_the_epochs_early():
    trainer = tiny_trainer(epochs=10, learning_rate=1e-2, target_kl_stop=1e-4)
    assert 1 <= trainer.ppo_step(PROMPTS)["policy_updates"] < 10
    impossible = tiny_trainer(epochs=10, learning_rate=1e-2, target_kl_stop=1e-9)
    assert impossible.ppo_step(PROMPTS)["policy_updates"] == 1  # the first update starts at KL 0, the second does not


def test_every_token_knows_the_ratio_and_the_clip_of_the_last_pass_over_it():
    """With two epochs of one batch, the metrics are the mean of a first pass at ratio 1 and of the last one."""
    trainer = tiny_trainer(epochs=2, mini_batch_size=None, micro_batch_size=3, learning_rate=0.05)
    results = trainer.ppo_step(PROMPTS)
    pairs = results["sa_pairs"]
    ratio, clipped = (pairs[name][pairs.mask] for name in ("ratio", "clipped"))
    assert float(ratio.mean()) == pytest.approx(2 * results["ratio"] - 1, abs=1e-4)
    assert float(clipped.mean()) == pytest.approx(2 * results["clip_fraction"], abs=1e-6)
    assert 0 < clipped.mean() < 1
    low, high = (1 - trainer.config.clip_epsilon, 1 + trainer.config.clip_epsilon)
    assert torch.equal(clipped.bool(), (ratio < low) | (ratio > high))
    assert pairs.rows_of(0)[0]["ratio"] == pytest.approx(float(pairs["ratio"][0, 0]))


def test_a_step_that_trains_no_policy_knows_no_ratio():
    assert not tiny_trainer(value_warmup_steps=1).ppo_step(PROMPTS)["sa_pairs"].has("ratio")


def test_value_warmup_trains_the_value_model_only():
    trainer = tiny_trainer(value_warmup_steps=1)
    before = [p.clone() for p in trainer.policy.parameters()]
    results = trainer.ppo_step(PROMPTS)
    assert results["policy_updates"] == 0
    assert results["value_updates"] == 2
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.policy.parameters(), strict=True))
    assert trainer.ppo_step(PROMPTS)["policy_updates"] == 2


def test_gradients_are_clipped_to_their_norm():
    trainer = tiny_trainer(max_grad_norm=1e-3, epochs=1)
    trainer.ppo_step(PROMPTS)
    norm = torch.cat([p.grad.flatten() for p in trainer.policy.parameters()]).norm().item()
    assert norm == pytest.approx(1e-3, rel=1e-3)


def test_policy_and_value_have_their_own_learning_rates():
    trainer = tiny_trainer(steps=4, learning_rate=1e-3, value_learning_rate=4e-3)
    rates = []
    for _ in range(2):
        trainer.ppo_step(PROMPTS)
        rates.append([trainer.model_trainer.updates[name].learning_rate_now for name in ("policy", "value")])
    assert rates == [[1e-3, 4e-3], pytest.approx([0.75e-3, 3e-3])]


def test_nothing_that_is_not_finite_reaches_a_weight():
    trainer = tiny_trainer()
    pairs = finished_pairs(trainer)
    before = [p.clone() for p in trainer.policy.parameters()]
    broken = pairs.with_columns(advantage=pairs["advantage"] * float("nan"))
    with pytest.raises(DivergedError, match="policy_loss became nan"):
        trainer.model_trainer.train_policy_model(broken)
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.policy.parameters(), strict=True))


def test_whitened_advantages_depend_neither_on_the_rewards_scale_nor_on_their_level():
    losses = []
    for scale, level in ((1.0, 0.0), (100.0, 0.0), (1.0, 7.0)):
        trainer = tiny_trainer(kl_coef=0.0)
        pairs = finished_pairs(trainer)
        advantage = torch.randn(pairs.mask.shape, generator=torch.Generator().manual_seed(0)) * scale + level
        losses.append(trainer.model_trainer.train_policy_model(pairs.with_columns(advantage=advantage)))
    assert losses == pytest.approx(losses[:1] * 3, abs=1e-5)


# ------------------------------------------------------------------------------------------- the policy's loss by hand

LOSS_MASK = torch.tensor([[True, True], [True, False]])


def loss_of(logprob=0.0, **settings):
    """Ratio exp(logprob) at every token; advantages 1 and 3 of the first response, -2 of the second."""
    advantage = torch.tensor([[1.0, 3.0], [-2.0, 0.0]])
    pairs = SAPairs(LOSS_MASK, {"logprob": torch.zeros(2, 2), "advantage": advantage})
    new = torch.full((2, 2), logprob) * LOSS_MASK
    loss = PolicyLoss(0.2, longest=10, **settings)
    summed, sums = loss(pairs, new, entropy=torch.tensor([[0.5, 0.5], [1.0, 0.0]]) if loss.entropy_coef else None)
    assert sums["policy_loss"][0] == summed
    return summed.item(), loss.weight_of(pairs.lengths)


def test_how_tokens_add_up():
    assert loss_of(aggregate="tokens") == (-2.0, 3)  # -1 - 3 + 2
    assert loss_of(aggregate="sequences") == (0.0, 2)  # the means are -2 and 2
    assert loss_of(aggregate="constant") == (-2.0, 20)  # two responses, ten tokens each at most


def test_entropy_is_paid_for_in_the_rewards_units():
    # 0.5 + 0.5 + 1 nats at 0.1 * 3 each; the advantages are scaled too
    assert loss_of(entropy_coef=0.1, scale=3.0)[0] == pytest.approx(-6.0 - 0.6)


def test_what_bounds_an_update():
    ratio = math.log(1.5)
    # clip: -1.2 - 3.6, and 2 * 1.5 that nothing bounds; with dual_clip 1.25 it is 2.5
    assert loss_of(ratio)[0] == pytest.approx(-1.8)
    assert loss_of(ratio, dual_clip=1.25)[0] == pytest.approx(-2.3)
    assert loss_of(ratio, clip_high=0.4)[0] == pytest.approx(-1.4 * 4 + 3.0)
    # one ratio for the response is the same here; cispo: -min(1.5, 1.2) * (1 + 3 - 2) * log 1.5
    assert loss_of(ratio, kind="sequence")[0] == pytest.approx(-1.8)
    assert loss_of(ratio, kind="cispo")[0] == pytest.approx(-1.2 * 2 * ratio)
    # dppo: a probability of 1 that became 1.5 has moved by 0.5; only the token that is pushed the other way counts
    assert loss_of(ratio, kind="dppo")[0] == pytest.approx(3.0)


@pytest.mark.parametrize("kept", [None, torch.tensor([[0, 3, 5], [2, 4, -1]], dtype=torch.int32)], ids=["all", "kept"])
def test_the_entropys_gradient_is_its_own(kept):
    torch.manual_seed(0)
    hidden, head = torch.randn(2, 4, dtype=torch.float64, requires_grad=True), torch.randn(6, 4, dtype=torch.float64)
    z = hidden @ head.T / 0.7
    if kept is not None:
        z = z.gather(1, kept.long().clamp(min=0)).masked_fill(kept < 0, -torch.inf)
    p = z.softmax(-1)
    expected = -(p * torch.where(p > 0, p, torch.ones_like(p)).log()).sum(-1)
    ours = entropy_of_states(hidden, Head(head), kept, 0.7)
    torch.testing.assert_close(ours.double(), expected, atol=1e-6, rtol=1e-5)
    weights = torch.tensor([1.0, -2.0])
    (mine,) = torch.autograd.grad((ours * weights).sum(), hidden)
    (theirs,) = torch.autograd.grad((expected * weights).sum(), hidden)
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)
