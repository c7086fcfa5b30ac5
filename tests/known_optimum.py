"""A problem that PPO can be measured on: its optimum is known in closed form, and so is every policy's distance to it.

A tiny model speaks three letters of an alphabet of ten, with a reward that is any function of the text. Among all
policies the objective E[reward] - beta * KL(policy || reference) is largest for reference * exp(reward / beta). All
prefixes can be listed, so objective and KL of a trained policy are computed, not sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from burnish import PPOConfig, PPOTrainer

LETTERS = "abcdefghij"
LENGTH = 3
PROMPT = "ab"


def tokenizer() -> PreTrainedTokenizerFast:
    own = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(LETTERS)}, merges=[]))
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=own, eos_token="<eos>")


def model() -> Any:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(LETTERS) + 1,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        initializer_range=0.3,
        eos_token_id=len(LETTERS),
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    return AutoModelForCausalLM.from_config(config).eval()


def reward(prompts: list[str], responses: list[str]) -> list[float]:
    """Letters have a worth, and a letter that follows its neighbour in the alphabet has more."""
    return [float(worth(r)) for r in responses]


def worth(text: str) -> float:
    letters = [LETTERS.index(c) for c in text]
    single = sum((7 * n + 3) % 10 / 10 for n in letters) / LENGTH
    follows = sum(b == a + 1 for a, b in pairwise(letters)) / (LENGTH - 1)
    return single + 0.5 * follows


def worths() -> list[Tensor]:
    """Of all texts of 0, 1, 2 and 3 letters.  [1], [n], [n^2], [n^3]"""
    texts = [[""]]
    for _ in range(LENGTH):
        texts.append([t + c for t in texts[-1] for c in LETTERS])
    return [torch.tensor([worth(t) for t in level], dtype=torch.float64) for level in texts]


def logprobs(trainer: PPOTrainer, adapter: str | None) -> list[Tensor]:
    """log pi of every next token, before truncation, after all texts of 0, 1 and 2 letters.  [n^depth, V] each"""
    base, n = trainer.base, len(LETTERS)
    prefixes = torch.cartesian_prod(torch.arange(n), torch.arange(n), torch.zeros(1, dtype=torch.long))  # [n^2, 3]
    prompt = torch.tensor(trainer.generator.encoder.encode([PROMPT])).expand(len(prefixes), -1)
    context = base.build_context(prompt, torch.ones_like(prompt, dtype=torch.bool), prefixes)
    with torch.no_grad():
        z = (base.state_hidden(adapter, context) @ base.head.T).double() / trainer.config.temperature  # [n^2, 3, V]
    return [level.log_softmax(-1) for level in (z[:1, 0], z[::n, 1], z[:, 2])]


def sampled(logprob: Tensor, top_p: float) -> Tensor:
    """What is left of a distribution when tokens beyond the mass top_p are cut off.  [S, V] -> [S, V]"""
    ordered, ids = logprob.sort(descending=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    cut = ordered.masked_fill(before >= top_p, -torch.inf) if top_p < 1 else ordered
    return torch.empty_like(cut).scatter_(1, ids, cut.log_softmax(-1))


@dataclass(frozen=True)
class Result:
    """E[reward], KL to the reference in nats, and reward - beta * KL: of a whole response."""

    reward: float
    kl: float
    beta: float

    @property
    def objective(self) -> float:
        return self.reward - self.beta * self.kl


def result_of(policy: list[Tensor], reference: list[Tensor], beta: float) -> Result:
    """Of a policy that samples from these distributions, summed over all texts from their ends to their beginning."""
    worth_of = worths()
    reward, kl = worth_of[LENGTH], torch.zeros_like(worth_of[LENGTH])
    for depth in reversed(range(LENGTH)):
        p = policy[depth].exp()
        distance = (policy[depth] - reference[depth]).masked_fill(p == 0, 0.0)
        after = [
            torch.cat([v.view(-1, len(LETTERS)), end[:, None]], 1)
            for v, end in ((reward, worth_of[depth]), (kl, torch.zeros_like(worth_of[depth])))
        ]
        reward, kl = (p * after[0]).sum(1), (p * (distance + after[1])).sum(1)
    return Result(float(reward), float(kl), beta)


def best_objective(reference: list[Tensor], beta: float, top_p: float = 1.0) -> float:
    """The largest objective of any policy, or of any that is sampled with this top_p."""
    worth_of = worths()
    value = worth_of[LENGTH]
    for depth in reversed(range(LENGTH)):
        after = torch.cat([value.view(-1, len(LETTERS)), worth_of[depth][:, None]], 1)
        value = torch.stack([_best_at(w, beta, top_p) for w in reference[depth] + after / beta])
    return float(value)


def _best_at(w: Tensor, beta: float, top_p: float) -> Tensor:
    """beta * log sum exp(w) over the best set of tokens that a top_p sampler can be brought to keep.  [V] -> scalar

    The policy keeps q = softmax(w) on its set with some mass m, and spreads 1 - m over the others. The sampler keeps
    just this set if m >= top_p, if without its least likely token less than top_p is left, and if none of the others is
    more likely than that one.
    """
    w = w.sort(descending=True).values
    best = torch.tensor(-torch.inf, dtype=w.dtype)
    for size in range(1, len(w) + 1):
        least = float(w[:size].softmax(0)[-1])
        others = len(w) - size
        smallest_mass = max(top_p, 1 / (1 + others * least)) if others else 1.0
        if top_p == 1 or smallest_mass * (1 - least) < top_p:
            best = torch.maximum(best, beta * w[:size].logsumexp(0))
    return best


def untrained(beta: float, top_p: float = 1.0, steps: int = 150, **changes: Any) -> PPOTrainer:
    """A trainer for the problem."""
    settings: dict[str, Any] = {
        "model_name": "tiny",
        "lora_r": 8,
        "lora_alpha": 16,
        "max_new_tokens": LENGTH,
        "top_k": len(LETTERS) + 1 if top_p < 1 else 0,
        "top_p": top_p,
        "kl_coef": beta,
        "gamma": 1.0,
        "lam": 1.0,
        "steps": steps,
        "batch_size": 128,
        "mini_batch_size": 64,
        "epochs": 2,
        "learning_rate": 3e-3,
        "value_learning_rate": 3e-3,
        "max_kl": None,
        "target_kl_stop": None,
    }
    return PPOTrainer(PPOConfig(**(settings | changes)), reward, model(), tokenizer())


def trained(beta: float, top_p: float = 1.0, **changes: Any) -> PPOTrainer:
    """PPO on the problem until it hardly moves any more."""
    trainer = untrained(beta, top_p, **changes)
    trainer.train([PROMPT] * trainer.config.batch_size)
    return trainer


@dataclass(frozen=True)
class Way:
    """How far training came from the reference to the optimum, how far any policy that is sampled so can come, and how
    far it went in nats: as computed over all texts, and as the trainer's own metric says.
    """

    reached: float
    possible: float
    kl: float
    reported_kl: float


def way_of(trainer: PPOTrainer) -> Way:
    beta, top_p = trainer.config.kl_coef, trainer.config.top_p
    reference = logprobs(trainer, None)
    policy = [sampled(level, top_p) for level in logprobs(trainer, "policy")]
    start = result_of(reference, reference, beta).objective
    whole = best_objective(reference, beta) - start
    result = result_of(policy, reference, beta)
    pairs, _ = trainer.generator.generate_sequences([PROMPT] * 512, torch.Generator().manual_seed(5))
    return Way(
        reached=(result.objective - start) / whole,
        possible=(best_objective(reference, beta, top_p) - start) / whole,
        kl=result.kl,
        reported_kl=pairs["exact_kl"].sum(1).mean().item(),
    )
