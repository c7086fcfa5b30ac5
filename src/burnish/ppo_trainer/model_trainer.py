"""Updates: several epochs over the experience, value model and policy apart."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from burnish.clock import Clock, timed
from burnish.config import PPOConfig
from burnish.errors import BurnishError, DivergedError, ResourceError
from burnish.experience_buffer import ExperienceBuffer, MiniBatch
from burnish.guards import ADVICE, check_finite, gradients_are_finite, is_out_of_memory
from burnish.maths import kl_per_token, masked_mean, policy_ratio
from burnish.models import PolicyModel, ValueModel
from burnish.models.base_model import RoleModel
from burnish.reward_kl import Rows
from burnish.sa_pairs import SAPairs, as_sa_pairs
from burnish.training import LossOfPairs, PolicyLoss, Statistics, ValueLoss, accumulate_gradients

# How far ratios may be from 1 on average before anything is learned: rounding, by the base's number format. A single
# token may be off by ten times as much: it is the largest of very many rounding errors. Half precision rounds logits of
# the order of 20 by up to 2^-4 (bfloat16) and 2^-7 (float16), and which way depends on what stands beside a response
# in its micro-batch; 0.04 and 0.005 were seen.
FIRST_RATIO_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.12, torch.float16: 0.015}


class ModelTrainer:
    """Owns the two optimizers. Each `train_...` call makes all its epochs and returns the mean loss."""

    def __init__(
        self, policy: PolicyModel, value_model: ValueModel, config: PPOConfig, clock: Clock | None = None
    ) -> None:
        self.policy = policy
        self.value_model = value_model
        self.config = config
        self.clock = clock or Clock()
        self.policy_optimizer = _adam(policy.parameters(), config.learning_rate)
        self.value_optimizer = _adam(value_model.parameters(), config.value_learning_rate)
        self.metrics: dict[str, float] = {}
        self.order = torch.Generator().manual_seed(config.seed)

    def set_learning_rates(self, factor: float) -> None:
        """Both learning rates at `factor` times their configured value."""
        self.policy_optimizer.param_groups[0]["lr"] = factor * self.config.learning_rate
        self.value_optimizer.param_groups[0]["lr"] = factor * self.config.value_learning_rate

    @timed
    def train_value_model(self, sa_pairs: Rows | ExperienceBuffer) -> float:
        """Minimises the squared error to the returns; gives the mean loss."""
        value_loss = ValueLoss(self.config.value_clip)

        def loss_of(pairs: SAPairs) -> tuple[Tensor, Statistics]:
            assert pairs.context is not None
            value = self.value_model.values(pairs.context, pairs.mask)
            check_finite("value in training", value.detach(), pairs)
            return value_loss(pairs, value)

        self.metrics |= self._train(self.value_model, self.value_optimizer, self._buffer(sa_pairs), loss_of)
        return self.metrics["value_loss"]

    @timed
    def train_policy_model(self, sa_pairs: Rows | ExperienceBuffer, kl_coef: float | None = None) -> float:
        """Maximises the clipped objective, less the KL where `kl_in` charges it in the loss; gives the mean loss.

        `kl_coef` is the price of a nat now; the configured one unless given.
        """
        buffer = self._buffer(sa_pairs)
        mean, variance = buffer.moments("advantage")
        whiten = self.config.whiten_advantages
        policy_loss = PolicyLoss(
            self.config.clip_epsilon,
            mean if whiten else 0.0,
            torch.rsqrt(variance + 1e-8) if whiten else 1.0,
            self.config.kl_coef if kl_coef is None else kl_coef,
        )
        first_ratio_errors = [0.0]

        def loss_of(pairs: SAPairs) -> tuple[Tensor, Statistics]:
            assert pairs.context is not None
            states = self.policy.states(pairs.context)
            logprob = self.policy.logprobs(pairs.context, pairs.mask, pairs.kept, states)
            check_finite("policy's log-probability in training", logprob.detach(), pairs)
            if pairs.policy_version == self.policy.num_updates:
                first_ratio_errors.append(self._check_first_ratio(pairs, logprob.detach()))
            return policy_loss(pairs, logprob, self._kl_in_loss(pairs, logprob, states))

        metrics = self._train(self.policy, self.policy_optimizer, buffer, loss_of, self.config.target_kl_stop)
        self.metrics |= metrics | {"first_ratio_error": max(first_ratio_errors)}
        return self.metrics["policy_loss"]

    def _kl_in_loss(self, pairs: SAPairs, logprob: Tensor, states: Tensor) -> Tensor | None:
        """The KL to the reference as the loss charges it, with gradient  [B, T]; None where the reward alone does."""
        assert pairs.context is not None
        if self.config.kl_in == "reward":
            return None
        if self.config.kl_estimator == "exact":
            return self.policy.kl_to_reference(pairs.context, pairs.mask, states)
        return kl_per_token(logprob, pairs["ref_logprob"], self.config.kl_estimator)

    # ------------------------------------------------------------------------------------------------ the loop

    def _train(
        self,
        model: RoleModel,
        optimizer: AdamW,
        buffer: ExperienceBuffer,
        loss_of: LossOfPairs,
        target_kl_stop: float | None = None,
    ) -> dict[str, float]:
        """Epochs of mini-batches, ended before an update that would start beyond the target KL. Gives mean metrics."""
        config = self.config
        history: list[dict[str, float]] = []
        base = model.base
        max_tokens = config.activation_mb * 2**20 // base.activation_bytes
        prefix_cost = base.prefix_activation_bytes / base.activation_bytes
        for _ in range(config.epochs):
            for mini_batch in buffer.mini_batches(
                config.mini_batch_size, max_tokens, config.micro_batch_size, self.order, prefix_cost
            ):
                totals, num_tokens = self._gradients(optimizer, mini_batch, loss_of)
                statistics = {name: float(total) / num_tokens for name, total in totals.items()}
                norm = float(nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm))
                if not all(map(math.isfinite, (norm, *statistics.values()))):
                    raise self._not_finite(model, optimizer, mini_batch, loss_of, statistics, norm)
                history.append(statistics | {f"{model.adapter}_grad_norm": norm})
                if target_kl_stop is not None and statistics["approx_kl"] > target_kl_stop:
                    return _means(history)
                optimizer.step()
                model.num_updates += 1
        return _means(history)

    def _gradients(self, optimizer: AdamW, mini_batch: MiniBatch, loss_of: LossOfPairs) -> tuple[Statistics, int]:
        """Of one mini-batch. If memory does not suffice, in smaller pieces: that changes nothing but the time."""
        try:
            optimizer.zero_grad()
            return accumulate_gradients(mini_batch, loss_of)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            smaller = mini_batch.halved()
        if smaller is None:
            raise ResourceError(
                "there is not enough memory to train on a single response; lower max_new_tokens, lora_layers or "
                "prompt_cache_mb, or use a smaller model"
            )
        warnings.warn("memory ran out; the mini-batch is trained in smaller pieces (lower activation_mb)", stacklevel=2)
        return self._gradients(optimizer, smaller, loss_of)

    def _not_finite(
        self,
        model: RoleModel,
        optimizer: AdamW,
        mini_batch: MiniBatch,
        loss_of: LossOfPairs,
        statistics: dict[str, float],
        norm: float,
    ) -> DivergedError:
        """What is not finite, and by which response: each is tried alone. Nothing of it has reached a weight."""
        numbers = {**statistics, f"{model.adapter} gradient norm": norm}
        name, value = next((n, v) for n, v in numbers.items() if not math.isfinite(v))
        where = ""
        for pairs in (table.select(row[None]) for table, rows in mini_batch.parts for row in rows):
            optimizer.zero_grad()
            loss_of(pairs)[0].backward()
            if not gradients_are_finite(model.parameters()):
                where = f" (by response {pairs.numbers[0]})"
                break
        optimizer.zero_grad()
        return DivergedError(
            f"{name} became {value}{where} before an optimizer step of the {model.adapter} model; no weight was "
            f"changed. {ADVICE}"
        )

    @torch.no_grad()
    def ruined(self, buffer: ExperienceBuffer) -> str | None:
        """The model that gives no numbers any more after a step's updates; each is asked about one response."""
        for table in buffer.tables[:1]:
            pairs = self.policy.adopt(table.select(torch.tensor([0])))
            assert pairs.context is not None
            if not self.value_model.values(pairs.context, pairs.mask).isfinite().all():
                return "value model"
            if not self.policy.logprobs(pairs.context, pairs.mask, pairs.kept).isfinite().all():
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


def _adam(parameters: Sequence[nn.Parameter], learning_rate: float) -> AdamW:
    return AdamW(parameters, lr=learning_rate, eps=1e-5, weight_decay=0.0, fused=True)


def _means(history: list[dict[str, float]]) -> dict[str, float]:
    return {name: sum(h[name] for h in history) / len(history) for name in history[0]}
