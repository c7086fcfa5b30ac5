"""What an export computes: the model is loaded, written in its form, and compared with what its consumer says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import LoraConfig
from rich.console import Console

from burnish.export import consumers
from burnish.export.adapter import write_adapter
from burnish.export.card import write_card
from burnish.export.exported import Exported, write_facts, written_whole
from burnish.export.merged import write_merged
from burnish.export.same_answers import Sameness, compare, refuse_wrong
from burnish.export.source import Answer, Source
from burnish.models.adapter_files import load_adapter
from burnish.runs.run import Run
from burnish.show import terminal
from burnish.stages.export import Wish, prompts_for
from burnish.stages.generate import speakers_of
from burnish.text import plain


def export_to(console: Console, wish: Wish, run: Run, adapter: Path, output: Path) -> Exported:
    source = load_source(console, wish, run, adapter)
    with terminal.busy(console, f"burnish answers {len(source.prompts)} prompts"):
        own = source.answers()
    work = Work(console, wish, source, own)
    with written_whole(output) as folder:
        facts = FORMS[wish.form](work, folder)
        facts = {"form": wish.form, "adapter_scope": source.scope} | facts
        write_card(source, facts, folder)
        write_facts(folder, facts)
    return Exported(wish.form, output, facts)


def load_source(console: Console, wish: Wish, run: Run, adapter: Path) -> Source:
    """The run's tuned model, or the base with an ordinary LoRA that was made from it."""
    speakers = speakers_of(console, str(run.folder), trust=wish.trust)
    name = speakers.adapters["tuned"]
    assert name is not None
    if wish.lora is not None:
        base, name = speakers.setup.base, "lora"
        base.add_adapter(name, LoraConfig.from_pretrained(str(adapter)))
        base.scope = "sequence"  # from here on: the run's own adapter is not asked any more
        base.act_from([])
        load_adapter(base, name, adapter)
    prompts = prompts_for(run, wish.prompts)
    return Source(run, speakers.config, speakers.setup, name, adapter, prompts, distilled=wish.lora is not None)


@dataclass(frozen=True)
class Work:
    """What every form is made with."""

    console: Console
    wish: Wish
    source: Source
    own: list[Answer]
    """burnish's."""

    def compared(self, consumer: str, numbers: str, answers: Callable[[], list[Answer]]) -> Sameness:
        with terminal.busy(self.console, f"{consumer} loads it and answers"):
            theirs = answers()
        found = refuse_wrong(compare(self.source, self.own, theirs, consumer, numbers))
        self.console.print(plain(found.sentence), highlight=False)
        return found

    @property
    def numbers(self) -> str:
        """What the base computes with."""
        return str(self.source.base.model.dtype).removeprefix("torch.")


def _verified(found: Sameness) -> dict[str, Any]:
    return {"verified": True, "compared": found.as_dict()}


def _adapter(work: Work, folder: Path) -> dict[str, Any]:
    write_adapter(work.source, folder)
    return _verified(work.compared("peft", work.numbers, lambda: consumers.from_peft(work.source, folder)))


def _merged(work: Work, folder: Path) -> dict[str, Any]:
    with terminal.busy(work.console, "folding the adapter into the weights"):
        write_merged(work.source, folder)
    found = work.compared("transformers", work.numbers, lambda: consumers.from_transformers(work.source, folder))
    return _verified(found)


FORMS: dict[str, Callable[[Work, Path], dict[str, Any]]] = {
    "adapter": _adapter,
    "merged": _merged,
}
