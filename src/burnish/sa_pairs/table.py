"""SAPairs: every generated token as a state-action pair; rows to read, columns to compute.

One table holds a batch of responses. Each column is a `[B, T]` tensor, right-padded and zero outside one boolean
`mask`. The same table is a sequence of dicts, one per generated token, so that `pairs[0]["advantage"]` reads as one
would say it. Rows are for people; nothing in the training step walks them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from burnish.errors import InputError, nearest
from burnish.processes import world
from burnish.sa_pairs.columns import COLUMN_OF_ROW_KEY, COLUMNS, ROW_KEYS, row_key_of
from burnish.sa_pairs.padding import left_padded, right_padded
from burnish.sa_pairs.plain_rows import column_keys, fill, kept_of, prompts_of
from burnish.sa_pairs.response import Decode, data_frame, html_of

if TYPE_CHECKING:
    from burnish.decoder.shared_context import SharedContext


@dataclass(frozen=True, eq=False)
class SAPairs(Sequence[dict[str, Any]]):
    """State-action pairs of one batch of responses. Nothing is edited in place: `with_columns` returns a new table."""

    mask: Tensor
    """[B, T] bool: True on generated tokens, the stop token included."""
    columns: dict[str, Tensor]
    """name -> [B, T]; the names are those of COLUMNS."""
    prompt_ids: Tensor | None = None
    """[B, P] token ids of the prompts, left-padded."""
    prompt_mask: Tensor | None = None
    """[B, P] bool: True on real prompt tokens."""
    kept: Tensor | None = None
    """[B, T, k] ids that top-k and top-p kept at each position, -1 where fewer; None: the whole vocabulary."""
    finished: Tensor | None = None
    """[B] bool: the response ended in a stop token. None: not known."""
    context: SharedContext | None = None
    """What the frozen base already computed for these sequences, for the models to start from."""
    critic_context: SharedContext | None = None
    """The same for a value model that reads more than the policy does. None: it reads what the policy reads."""
    policy_version: int | None = None
    """How many updates the policy had seen when it generated them. None: not known."""
    response_numbers: list[int] | None = None
    """Which responses of the step these are, for those cut out of its table. None: all of them, in order."""
    prompt_numbers: list[int] | None = None
    """Which prompt of the step each response answers: those with the same number form a group. None: each its own."""
    here: list[int] | None = None
    """The rows that this process works on, where several share the table: `kept` and the contexts are of these alone,
    columns of all. None: everything is here."""
    decode: Decode | None = None
    """Reads token ids as text, for people. None: nobody said how."""

    def __repr__(self) -> str:
        return f"SAPairs({self.mask.shape[0]} responses, {len(self)} tokens; {', '.join(self.columns)})"

    def _repr_html_(self) -> str:
        """In a notebook: the first responses token by token."""
        return html_of(self)

    def to_pandas(self) -> Any:
        """A data frame with a line for each token: everything but its state, which `rows_of` has."""
        return data_frame(self)

    # ------------------------------------------------------------------------------------------------- columns

    @overload
    def __getitem__(self, key: str) -> Tensor: ...
    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, key: str | int | slice) -> Tensor | dict[str, Any] | list[dict[str, Any]]:
        """A name gives a column, a number a row, a slice several rows."""
        if isinstance(key, str):
            return self.column(key)
        if isinstance(key, slice):
            return [self.row(i) for i in range(*key.indices(len(self)))]
        return self.row(key)

    def column(self, name: str) -> Tensor:
        """The [B, T] tensor of that name; a missing one names the call that adds it."""
        if name in self.columns:
            return self.columns[name]
        if name in COLUMNS:
            raise InputError(f"these SA pairs have no column {name!r} yet; call {COLUMNS[name].added_by} first")
        raise InputError(f"{name!r} is not a column of SA pairs{nearest(name, COLUMNS)}")

    def has(self, name: str) -> bool:
        return name in self.columns

    def __contains__(self, name: object) -> bool:
        """Whether there is such a column; for a row, `in list(pairs)`."""
        return name in self.columns

    def with_columns(self, **new: Tensor) -> SAPairs:
        """A new table with these columns added or replaced: detached, and zero outside the mask.

        A column of your own may have any name that is not nearly that of a known one.
        """
        columns = dict(self.columns)
        for name, tensor in new.items():
            if name not in COLUMNS and nearest(name, COLUMNS):
                raise InputError(f"{name!r} is not a column of SA pairs{nearest(name, COLUMNS)}")
            if tensor.shape != self.mask.shape:
                raise InputError(
                    f"column {name!r} has shape {tuple(tensor.shape)}, the table is {tuple(self.mask.shape)}"
                )
            columns[name] = torch.where(self.mask, tensor.detach(), torch.zeros_like(tensor))
        return replace(self, columns=columns)

    def select(self, rows: Tensor | Sequence[int]) -> SAPairs:
        """Some responses, cut to the widths they need."""
        rows = torch.as_tensor(rows)
        held, here = self.held(rows)
        width = int(self.lengths[rows].max())
        prompt_width = 0 if self.prompt_mask is None else int(self.prompt_mask[rows].sum(1).max())

        def right_of(prompt: Tensor | None) -> Tensor | None:
            return None if prompt is None else prompt[rows, prompt.shape[1] - prompt_width :]

        def of_here(context: SharedContext | None, prompt_width: int | None) -> SharedContext | None:
            return context.rows(held, prompt_width, width) if context is not None and len(held) else None

        return replace(
            self,
            mask=self.mask[rows, :width],
            columns={name: column[rows, :width] for name, column in self.columns.items()},
            prompt_ids=right_of(self.prompt_ids),
            prompt_mask=right_of(self.prompt_mask),
            kept=None if self.kept is None else self.kept[held, :width],
            finished=None if self.finished is None else self.finished[rows],
            context=of_here(self.context, prompt_width if self.here is None else None),
            critic_context=of_here(self.critic_context, None),
            response_numbers=[self.numbers[row] for row in rows.tolist()],
            prompt_numbers=[self.groups[row] for row in rows.tolist()],
            here=here,
        )

    def held(self, rows: Tensor) -> tuple[Tensor, list[int] | None]:
        """Where some rows are in what this process holds; and, if not all of them are, which."""
        if self.here is None:
            return rows, None
        place = {row: n for n, row in enumerate(self.here)}
        here = [n for n, row in enumerate(rows.tolist()) if row in place]
        held = torch.tensor([place[int(rows[n])] for n in here], dtype=torch.long)
        return held, None if len(here) == len(rows) else here

    @property
    def own_rows(self) -> Sequence[int]:
        """The rows that this process works on: all, if it is alone."""
        return world.share(len(self.mask)) if self.here is None else self.here

    def own(self) -> SAPairs | None:
        """The responses that this process works on, as a table of their own; None if there are none."""
        rows = self.own_rows
        return self if len(rows) == len(self.mask) else self.select(list(rows)) if rows else None

    @property
    def numbers(self) -> Sequence[int]:
        """[B] each response's number in its step."""
        return range(self.mask.shape[0]) if self.response_numbers is None else self.response_numbers

    @property
    def groups(self) -> Sequence[int]:
        """[B] the number of each response's prompt: responses to the same prompt share it."""
        return self.numbers if self.prompt_numbers is None else self.prompt_numbers

    def to(self, device: torch.device) -> SAPairs:
        """The same table on another device (a shared context stays where its base is)."""

        def moved(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device)

        return replace(
            self,
            mask=self.mask.to(device),
            columns={name: column.to(device) for name, column in self.columns.items()},
            prompt_ids=moved(self.prompt_ids),
            prompt_mask=moved(self.prompt_mask),
            kept=moved(self.kept),
            finished=moved(self.finished),
        )

    @property
    def lengths(self) -> Tensor:
        """[B] number of generated tokens of each response."""
        return self.mask.sum(1)

    @property
    def nbytes(self) -> int:
        """Memory of the table's own tensors (the shared context is counted apart)."""
        own = [self.mask, self.prompt_ids, self.prompt_mask, self.kept, self.finished, *self.columns.values()]
        return sum(t.numel() * t.element_size() for t in own if t is not None)

    # ---------------------------------------------------------------------------------------------------- rows

    def __len__(self) -> int:
        return int(self.mask.sum())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self._row_at(b, t) for b, t in self.mask.nonzero().tolist())

    def row(self, index: int) -> dict[str, Any]:
        """Row `index`, counted over the generated tokens of all responses in order."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)} SA pairs")
        b, t = self.mask.nonzero()[index].tolist()
        return self._row_at(b, t)

    def rows_of(self, prompt_id: int) -> list[dict[str, Any]]:
        """All rows of one response."""
        return [self._row_at(prompt_id, t) for t in range(int(self.lengths[prompt_id]))]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Every row as a plain dict."""
        return list(self)

    def _row_at(self, b: int, t: int) -> dict[str, Any]:
        row: dict[str, Any] = {"prompt_id": b, "position": t}
        if self.prompt_numbers is not None:
            row["group"] = self.prompt_numbers[b]
        if self.prompt_ids is not None and self.prompt_mask is not None and "action" in self.columns:
            row["state"] = self.prompt_ids[b][self.prompt_mask[b]].tolist() + self.columns["action"][b, :t].tolist()
        row |= {row_key_of(name): column[b, t].item() for name, column in self.columns.items()}
        if self.finished is not None:
            row["finished"] = bool(self.finished[b])
        if self.kept is not None and self.here is None:
            row["kept"] = [i for i in self.kept[b, t].tolist() if i >= 0]
        return row

    @classmethod
    def from_dicts(cls, rows: Sequence[Mapping[str, Any]]) -> SAPairs:
        """The table of plain rows. Rows of one response share a `prompt_id` (0 if absent).

        Responses are numbered from 0 in the order of their ids, and tokens by `position`, or as they come.
        """
        responses: dict[int, list[Mapping[str, Any]]] = {}
        for number, row in enumerate(rows):
            for key in row:
                if key not in ROW_KEYS and nearest(key, ROW_KEYS):
                    raise InputError(f"SA pair {number}: unknown key {key!r}{nearest(key, ROW_KEYS)}")
            responses.setdefault(int(row.get("prompt_id", 0)), []).append(row)
        if not responses:
            raise InputError("there are no SA pairs in the list")
        grouped = [sorted(r, key=lambda row: row.get("position", 0)) for _, r in sorted(responses.items())]
        lengths = torch.tensor([len(r) for r in grouped])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]  # [B, T]
        prompt_ids, prompt_mask = prompts_of([r[0].get("state") for r in grouped])
        return cls(
            mask=mask,
            columns={COLUMN_OF_ROW_KEY.get(k, k): fill(mask, k, grouped) for k in column_keys(rows)},
            prompt_ids=prompt_ids,
            prompt_mask=prompt_mask,
            kept=kept_of(mask, grouped),
            finished=torch.tensor([r[0]["finished"] for r in grouped]) if "finished" in rows[0] else None,
            prompt_numbers=[int(r[0]["group"]) for r in grouped] if "group" in rows[0] else None,
        )

    @classmethod
    def of_tokens(
        cls, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], device: torch.device | None = None
    ) -> SAPairs:
        """The table of texts that nobody generated just now: prompts and responses as token ids."""
        (prompt_ids, prompt_mask), (action, mask) = left_padded(prompts), right_padded(responses)
        pairs = cls(mask, {"action": action}, prompt_ids, prompt_mask)
        return pairs if device is None else pairs.to(device)


Rows = SAPairs | Sequence[Mapping[str, Any]]


def as_sa_pairs(sa_pairs: Rows) -> SAPairs:
    """Every component takes the table or a plain list of dicts; this is where they become one."""
    return sa_pairs if isinstance(sa_pairs, SAPairs) else SAPairs.from_dicts(sa_pairs)
