"""A prefix that several sequences read: stored once, and attended to once per layer for all of them.

The queries of all sequences that share a prefix are laid out as the queries of one sequence. They attend to the prefix
in one call and to their own keys in another; the two results are then joined as the softmax over both would have.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# torch's own attention on CPUs. It also gives the log of the softmax's denominator, with which two results are joined.
_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_attend_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class SharedPrefix:
    """Keys and values of G prefixes, and which of them each of B sequences reads."""

    def __init__(self, entries: Tensor, rows: Tensor, key_mask: Tensor, first_layer: int = 0) -> None:
        """`entries` [layers, 2, G, key_heads, S, D]; `rows` [B]; `key_mask` [G, S] bool, True on real tokens."""
        self.entries = entries
        self.rows = rows
        self.key_mask = key_mask
        self.first_layer = first_layer
        counts = torch.bincount(rows, minlength=len(key_mask))  # [G] sequences of each prefix
        self._most = int(counts.max())
        order = rows.argsort(stable=True)
        rank = torch.empty_like(rows)  # of a sequence among those of its prefix
        rank[order] = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows[order]]
        self._places = rows * self._most + rank  # [B]
        size = len(key_mask) * self._most
        self._in_order = len(rows) == size and bool((self._places == torch.arange(size, device=rows.device)).all())
        self._empty = ~key_mask.any(1)[:, None, None]  # [G, 1, 1]
        added = torch.zeros(key_mask.shape, dtype=entries.dtype, device=entries.device)
        self._added = (
            None if key_mask.all() else added.masked_fill_(~key_mask, -torch.inf)[:, None, None]
        )  # [G, 1, 1, S]

    @property
    def width(self) -> int:
        """S, padding included."""
        return self.key_mask.shape[1]

    def keep(self, chosen: Tensor) -> SharedPrefix:
        """Those that some of the sequences read.  chosen [n]"""
        used, rows = self.rows[chosen].unique(return_inverse=True)
        entries = self.entries if len(used) == len(self.key_mask) else self.entries[:, :, used]
        return SharedPrefix(entries, rows, self.key_mask[used], self.first_layer)

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None, layer: int
    ) -> Tensor:
        """Of each sequence to its prefix and its own keys.  [B, key_heads, Q, D], keys [B, key_heads, S', D]"""
        key, value = (
            x if x.stride(-1) == 1 else x.contiguous() for x in (key, value)
        )  # the kernel takes it for granted
        return _Joined.apply(query, key, value, mask, scale, self, layer - self.first_layer)

    def attend(self, query: Tensor, scale: float | None, layer: int) -> tuple[Tensor, Tensor]:
        """To the prefix alone: results [B, key_heads, Q, D], and the logs of their denominators [B, key_heads, Q]."""
        together = self._together(query)
        keys, values = self.entries[layer]
        out, log = _attend(together, keys, values, attn_mask=self._mask_for(together), scale=scale)
        return self._apart(out, query.shape[2]), self._apart(log.masked_fill(self._empty, -torch.inf), query.shape[2])

    def backward(
        self, grad: Tensor, query: Tensor, out: Tensor, log: Tensor, scale: float | None, layer: int
    ) -> Tensor:
        """The part of the queries' gradient that comes through the prefix, `out` and `log` being those of both."""
        together = self._together(query)
        keys, values = self.entries[layer]
        mask = self._mask_for(together)
        others = (self._together(x) for x in (grad, out, log))
        grad, out, log = (x.contiguous() for x in others)
        own, _, _ = _attend_backward(grad, together, keys, values, out, log, 0.0, False, attn_mask=mask, scale=scale)
        return self._apart(own, query.shape[2])

    def _mask_for(self, query: Tensor) -> Tensor | None:
        return None if self._added is None else self._added.expand(-1, -1, query.shape[2], -1)

    def _together(self, x: Tensor) -> Tensor:
        """All sequences of a prefix side by side.  [B, key_heads, Q, ...] -> [G, key_heads, most * Q, ...]"""
        if not self._in_order:
            x = x.new_zeros(len(self.key_mask) * self._most, *x.shape[1:]).index_copy_(0, self._places, x)
        return x.unflatten(0, (-1, self._most)).transpose(1, 2).flatten(2, 3)

    def _apart(self, x: Tensor, num_queries: int) -> Tensor:
        """And back.  [G, key_heads, most * Q, ...] -> [B, key_heads, Q, ...]"""
        x = x.unflatten(2, (self._most, num_queries)).transpose(1, 2).flatten(0, 1)
        return x if self._in_order else x[self._places]


class _Joined(torch.autograd.Function):
    """Attention over two sets of keys, as one softmax: exp(log_1 - log) out_1 + exp(log_2 - log) out_2.

    The backward pass of either set is that of ordinary attention, given the result and the denominator of both. The
    prefix is the frozen base's, so no gradient goes into it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor,
        scale: float | None,
        prefix: SharedPrefix,
        layer: int,
    ) -> Tensor:
        own, own_log = _attend(query, key, value, attn_mask=mask, scale=scale)
        before, before_log = prefix.attend(query, scale, layer)
        log = torch.logaddexp(own_log, before_log)
        own = own.mul_((own_log - log).exp_()[..., None])
        out = own.add_(before.mul_((before_log - log).exp_()[..., None]))
        if any(ctx.needs_input_grad[:3]):
            ctx.save_for_backward(query, key, value, mask, out, log)
            ctx.scale, ctx.prefix, ctx.layer = scale, prefix, layer
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mask, out, log = ctx.saved_tensors
        grad = grad.contiguous()
        of_query, of_key, of_value = _attend_backward(
            grad, query, key, value, out, log, 0.0, False, attn_mask=mask, scale=ctx.scale
        )
        of_query = of_query + ctx.prefix.backward(grad, query, out, log, ctx.scale, ctx.layer)
        return of_query, of_key, of_value, None, None, None, None
