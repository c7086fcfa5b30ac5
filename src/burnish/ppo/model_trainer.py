"""Updates: several epochs over the experience, value model and policy apart."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from burnish.config import PPOConfig
from burnish.errors import BurnishError, InputError
from burnish.maths import kl_per_token, masked_mean, policy_ratio
from burnish.models.policy_model import PolicyModel
from burnish.models.updates import LossOf, Sums, Updates
from burnish.models.value_model import ValueModel
from burnish.ppo.clock import Clock, timed
from burnish.ppo.experience_buffer import ExperienceBuffer
from burnish.ppo.guards import ADVICE, check_finite
from burnish.ppo.training import PolicyLoss, ValueLoss
from burnish.processes import world
from burnish.sa_pairs.shared import whole_column
from burnish.sa_pairs.table import Rows, SAPairs, as_sa_pairs

# How far ratios may be from 1 on average before anything is learned: rounding, by the base's number format. A single
# token may be off by ten times as much: it is the largest of very many rounding errors. Half precision rounds logits of
# the order of 20 by up to 2^-4 (bfloat16) and 2^-7 (float16), and which way depends on what stands beside a response
# in its micro-batch; 0.04 and 0.005 were seen.
FIRST_RATIO_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.12, torch.float16: 0.015}


class ModelTrainer:
    """Owns the updates of the trained roles. Each `train_...` call makes all its epochs and returns the mean loss."""

    def __init__(
        self, policy: PolicyModel, value_model: ValueModel | None, config: PPOConfig, clock: Clock | None = None
    ) -> None:
        self.policy = policy
        self.value_model = value_model
        self.config = config
        self.clock = clock or Clock()
        self.updates = {"policy": Updates(policy, config, config.learning_rate, config.max_grad_norm, ADVICE)}
        if value_model is not None:
            rate = config.value_learning_rate
            self.updates["value"] = Updates(value_model, config, rate, config.max_grad_norm, ADVICE)
        self.metrics: dict[str, float] = {}
        self._last_pass: tuple[PolicyLoss, dict[int, Tensor]] | None = None  # by response: log-probabilities
        self.order = torch.Generator().manual_seed(config.seed)

    def set_learning_rates(self, factor: float) -> None:
        """All learning rates at `factor` times their configured value."""
        for updates in self.updates.values():
            updates.set_learning_rate(factor)

    @timed
    def train_value_model(self, sa_pairs: Rows | ExperienceBuffer, warming_up: bool = False) -> float:
        """Minimises the squared error to the returns; gives the mean loss. `warming_up`: more epochs, and no clip."""
        if self.value_model is None:
            raise InputError("this trainer has no value model: its advantages need none")
        config, value_model = self.config, self.value_model
        value_loss = ValueLoss(None if warming_up else config.value_clip)
        epochs = (config.value_warmup_epochs if warming_up else None) or config.value_epochs or config.epochs

        def loss_of(pairs: SAPairs) -> tuple[Tensor, Sums]:
            value = value_model.values(pairs)
            check_finite("value in training", value.detach(), pairs)
            return value_loss(pairs, value)

        self.metrics |= self._train("value", self._buffer(sa_pairs), loss_of, epochs, num_tokens)
        return self.metrics["value_loss"]

    @timed
    def train_policy_model(self, sa_pairs: Rows | ExperienceBuffer, kl_coef: float | None = None) -> float:
        """Maximises the clipped objective, less the KL where `kl_in` charges it in the loss; gives the mean loss.

        `kl_coef` is the price of a nat now; the configured one unless given.
        """
        buffer = self._buffer(sa_pairs)
        mean, variance = buffer.moments("advantage")
        config, whiten = self.config, self.config.whiten_advantages
        policy_loss = PolicyLoss(
            config.clip_epsilon,
            mean if whiten else 0.0,
            torch.rsqrt(variance + 1e-8) if whiten else 1.0,
            config.kl_coef if kl_coef is None else kl_coef,
            config.entropy_coef,
            config.policy_loss,
            config.clip_high,
            config.dual_clip,
            config.aggregate,
            config.max_new_tokens,
            config.rollout,
        )
        first_ratio_errors = [0.0]
        last_logprobs: dict[int, Tensor] = {}
        self._last_pass = policy_loss, last_logprobs

        def loss_of(pairs: SAPairs) -> tuple[Tensor, Sums]:
            states = self.policy.states(pairs)
            logprob = self.policy.logprobs(pairs, states)
            check_finite("policy's log-probability in training", logprob.detach(), pairs)
            if pairs.policy_version == self.policy.num_updates:
                first_ratio_errors.append(self._check_first_ratio(pairs, logprob.detach()))
            kl = self._kl_in_loss(pairs, logprob, states)
            entropy = self.policy.entropy(pairs, states) if config.entropy_coef else None
            last_logprobs.update(zip(pairs.numbers, logprob.detach(), strict=True))
            return policy_loss(pairs, logprob, kl, entropy)

        metrics = self._train("policy", buffer, loss_of, config.epochs, policy_loss.weight_of, config.target_kl_stop)
        self.metrics |= metrics | {"first_ratio_error": world.largest(max(first_ratio_errors))}
        return self.metrics["policy_loss"]

    def add_ratios(self, sa_pairs: SAPairs) -> SAPairs:
        """What the last pass over each response found: the ratio of every token, and whether it was clipped. Without a
        pass, as in a warm-up step, the table stays as it is.
        """
        if self._last_pass is None:
            return sa_pairs
        (policy_loss, last_logprobs), self._last_pass = self._last_pass, None
        newest = sa_pairs["logprob"].clone()
        for row, number in enumerate(sa_pairs.numbers):
            if number in last_logprobs:  # target_kl_stop may have come before, or another process has worked on it
                own = last_logprobs[number]
                newest[row, : len(own)] = own
        here = list(sa_pairs.own_rows)
        ratio, clipped = policy_loss.reached(sa_pairs, whole_column(newest[here] if here else None, sa_pairs))
        return sa_pairs.with_columns(ratio=ratio, clipped=clipped.float())

    def _kl_in_loss(self, pairs: SAPairs, logprob: Tensor, states: Tensor) -> Tensor | None:
        """The KL to the reference as the loss charges it, with gradient  [B, T]; None where the reward alone does."""
        if self.config.kl_in == "reward":
            return None
        if self.config.kl_estimator == "exact":
            return self.policy.kl_to_reference(pairs, states)
        return kl_per_token(logprob, pairs["ref_logprob"], self.config.kl_estimator)

    def _train(
        self,
        name: str,
        buffer: ExperienceBuffer,
        loss_of: LossOf[SAPairs],
        epochs: int,
        weight_of: Callable[[Tensor], float],
        target_kl_stop: float | None = None,
    ) -> dict[str, float]:
        """Epochs of mini-batches, ended before an update that would start beyond the target KL. Gives mean metrics.

        `weight_of` says, by the lengths of responses, what their summed loss is divided by.
        """
        updates, base = self.updates[name], self.policy.base
        size, each = self.config.mini_batch_size, self.config.responses_per_prompt
        history: list[dict[str, float]] = []
        for _ in range(epochs):
            for mini_batch in buffer.mini_batches(
                size, self.order, base.prefix_cost, each, weight_of, name == "value", base.state_cost
            ):
                means = updates.gradients(mini_batch, loss_of)
                norm = means.pop("grad_norm")
                history.append(means | {f"{name}_grad_norm": norm})
                if target_kl_stop is not None and means["approx_kl"] > target_kl_stop:
                    return _means(history)
                updates.apply()
        return _means(history)

    @torch.no_grad()
    def ruined(self, buffer: ExperienceBuffer) -> str | None:
        """The model that produces NaN after a step's updates; each is asked about one response that is here."""
        for table in buffer.tables[:1]:
            if not len(table.own_rows):
                continue
            pairs = self.policy.adopt(table.select(torch.tensor([table.own_rows[0]])))
            if self.value_model is not None and not self.value_model.values(pairs).isfinite().all():
                return "value model"
            if not self.policy.logprobs(pairs).isfinite().all():
                return "policy"
        return None

    def _buffer(self, sa_pairs: Rows | ExperienceBuffer) -> ExperienceBuffer:
        """The experience with its shared context: as given, or computed now for pairs that come from plain rows."""
        tables = sa_pairs.tables if isinstance(sa_pairs, ExperienceBuffer) else [as_sa_pairs(sa_pairs)]
        buffer = ExperienceBuffer()
        for table in tables:
            buffer.store(self.policy.adopt(table))
        return buffer

    def _check_first_ratio(self, pairs: SAPairs, logprob: Tensor) -> float:
        """Before the first update the policy is the one that sampled, so every ratio must be 1. Gives the worst."""
        error = (policy_ratio(logprob, pairs["logprob"]) - 1).abs() * pairs.mask  # [B, T]
        worst, mean = float(error.max()), float(masked_mean(error, pairs.mask))
        limit = FIRST_RATIO_TOLERANCE.get(self.policy.base.head.dtype, 1e-4)
        if not (mean <= limit and worst <= 10 * limit):
            row, position = divmod(int(error.argmax()), error.shape[1])
            raise BurnishError(
                "the training pass does not reproduce the rollout: before any update, ratios are off 1 by "
                f"{mean:.2g} on average (limit {limit:g}) and by {worst:.2g} for token {position} of response {row} in "
                f"its micro-batch (limit {10 * limit:g}). Something differs between sampling and training: dropout, "
                "changed weights, or an edited mask"
            )
        return worst


def num_tokens(lengths: Tensor) -> float:
    return int(lengths.sum())


def _means(history: list[dict[str, float]]) -> dict[str, float]:
    return {name: sum(h[name] for h in history) / len(history) for name in history[0]}
