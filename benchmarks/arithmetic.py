"""The arithmetic that a PPO step needs, counted from its shapes: floating-point operations of matrix products.

Only what must be computed is counted: real tokens (no padding), a causal half of the attention, no product twice.
So a rate that is computed from it is what the user gets, not how busy the machine was.
"""

from __future__ import annotations

from burnish import PPOTrainer
from burnish.sa_pairs.table import SAPairs


class Arithmetic:
    """Counts for one finished step of a trainer."""

    def __init__(self, trainer: PPOTrainer, pairs: SAPairs, new_prompt_tokens: int) -> None:
        base, config = trainer.base, trainer.config
        assert pairs.context is not None
        assert pairs.prompt_mask is not None
        layer = base.decoder.layers[0]
        linear = {n: p.shape for n, p in layer.named_parameters() if p.dim() == 2 and "lora_" not in n}
        self.layer = sum(2 * out * into for out, into in linear.values())  # per token
        self.lora = sum(2 * config.lora_r * (out + into) for out, into in linear.values())
        self.queries = 4 * base.decoder.config.num_attention_heads * base.decoder.key_shape(0)[2]  # per key
        self.head = 2 * base.hidden_size * base.head.shape[0]
        kept = float(pairs.mask.sum()) * base.head.shape[0] if pairs.kept is None else float((pairs.kept >= 0).sum())
        self.kept_head = 2 * base.hidden_size * kept  # of all states

        self.num_layers, self.adapted = base.num_layers, base.num_layers - base.trunk_depth
        self.epochs = config.epochs
        lengths = pairs.lengths.tolist()
        prompts = pairs.prompt_mask.sum(1).tolist()
        starts = pairs.prompt_mask[:, : pairs.context.start].sum(1).tolist()  # tokens of each prefix
        self.states = sum(lengths)  # one for each generated token
        in_loss = config.kl_in != "reward" and config.kl_estimator == "exact"
        self.kl_head = 1.5 * self.states * self.head if in_loss else 0.0  # two products forwards, one backwards
        # A pass computes the prompt's adapted end and the response but its last token; every token sees those before.
        self.suffix = sum(p - s + t - 1 for p, s, t in zip(prompts, starts, lengths, strict=True))
        self.suffix_keys = sum(
            sum(range(s + 1, p + t)) for p, s, t in zip(prompts, starts, lengths, strict=True)
        )  # keys seen, summed over the suffix's tokens
        self.prefix = new_prompt_tokens
        mean_prefix = sum(starts) / max(len(starts), 1)
        self.prefix_keys = new_prompt_tokens * mean_prefix / 2

    def _pass(self, num_layers: int, adapter: bool) -> float:
        """Forward through layers, over all suffixes."""
        per_token = self.layer + (self.lora if adapter else 0)
        return num_layers * (self.suffix * per_token + self.suffix_keys * self.queries)

    def _training(self, head: float) -> float:
        """All epochs: forward, the gradient of the inputs, that of the adapter's two matrices, and attention's.

        Attention has two products forwards and four backwards, so one forward's worth more than the linear layers.
        """
        more = self.adapted * (self.suffix * self.lora + self.suffix_keys * self.queries)
        return self.epochs * (2 * self._pass(self.adapted, True) + more + 2 * head)

    def by_part(self) -> dict[str, float]:
        """GFLOP of every part."""
        lower = self._pass(self.num_layers - self.adapted, False)
        upper = self._pass(self.adapted, True)
        parts = {
            "prefill": self.num_layers * (self.prefix * self.layer + self.prefix_keys * self.queries),
            "decode": lower + upper + self.states * self.head,
            "reference": self._pass(self.adapted, False),
            "KL to the reference": self.states * self.head + self.kept_head,  # its whole vocabulary
            "value": upper,
            "reward": 0.0,
            "policy training": self._training(self.kept_head + self.kl_head),
            "value training": self._training(0.0),
            "everything else": 0.0,
        }
        return {name: flops / 1e9 for name, flops in parts.items()}
