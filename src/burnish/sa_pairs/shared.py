"""One table of what several processes have generated: columns of all responses, contexts of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from burnish.processes import world
from burnish.sa_pairs.padding import left_padded
from burnish.sa_pairs.table import SAPairs


def shared(own: SAPairs | None, rows: Sequence[int], prompts: Sequence[Sequence[int]], groups: list[int]) -> SAPairs:
    """The table of all processes, each of which gives its `own` responses, those in `rows`; None if it has none.

    `prompts` are the token ids of all prompts, `groups` the numbers that tell which are the same. A process that is
    alone has the whole table already.
    """
    if world.size() == 1:
        assert own is not None
        return own
    known = world.gather(None if own is None else [list(own.columns), own.finished is not None, own.policy_version])
    names, has_finished, version = next(of_process for of_process in known if of_process is not None)

    def column(name: str) -> Tensor:
        return world.rows(None if own is None else own[name])

    mask = world.rows(None if own is None else own.mask)
    prompt_ids, prompt_mask = (t.to(mask.device) for t in left_padded(prompts))
    table = SAPairs(
        mask=mask,
        columns={name: column(name) for name in names},
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        finished=world.rows(None if own is None else own.finished) if has_finished else None,
        policy_version=version,
        prompt_numbers=groups,
        here=list(rows),
    )
    return table if own is None else replace(table, kept=own.kept, context=own.context)


def whole_column(values: Tensor | None, sa_pairs: SAPairs) -> Tensor:
    """A column of the whole table from what each process has computed for its own rows.  [b, t] -> [B, T]"""
    if world.size() == 1:
        assert values is not None
        return values
    found = world.rows(values)
    places = [row for rows in world.gather(list(sa_pairs.own_rows)) for row in rows]
    column = found.new_zeros(sa_pairs.mask.shape)
    column[places, : found.shape[1]] = found
    return column
