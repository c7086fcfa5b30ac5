"""One step of decoding: a pass over what is new of each sequence, and the state that its next token is drawn from."""

from __future__ import annotations

from torch import Tensor

from burnish.decoder.key_values import GrowingCache
from burnish.decoder.model_cache import OwnState
from burnish.decoder.shared_base import SharedBase


def step(base: SharedBase, inputs: Tensor, key_mask: Tensor, cache: GrowingCache | OwnState) -> tuple[Tensor, Tensor]:
    """In the role that the base has taken. `inputs` [n, Q] are the last tokens of `key_mask` [n, S].

    -> what the trunk gives [n, Q, H], and the states after the last tokens [n, H], ready for the head
    """
    decoder = base.decoder
    trunk = decoder.run_layers(decoder.embed(inputs), key_mask, cache, range(base.trunk_depth))
    hidden = decoder.run_layers(trunk, key_mask, cache, range(base.trunk_depth, base.num_layers))
    cache.advance(inputs.shape[1])
    return trunk, decoder.norm(hidden[:, -1])
