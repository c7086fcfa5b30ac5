"""What an export computes: the model is loaded, written in its form, and compared with what its consumer says."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peft import LoraConfig
from rich.console import Console

import burnish
from burnish.errors import InputError
from burnish.export import consumers
from burnish.export.adapter import write_adapter
from burnish.export.card import write_card
from burnish.export.conversion import gguf_adapter, gguf_model, why_no_model
from burnish.export.exported import Exported, read_facts, write_facts, written_whole
from burnish.export.merged import is_quantized, refuse_unmergeable, write_merged
from burnish.export.ollama import ADAPTER, BASE, write_modelfile
from burnish.export.same_answers import Sameness, compare, refuse_wrong
from burnish.export.source import Answer, Source
from burnish.models.adapter_files import load_adapter
from burnish.runs.run import Run
from burnish.show import terminal
from burnish.stages.distilling import ORDINARY, Pupil, say_same
from burnish.stages.export import TEACHER, Wish, prompts_for, weights_digest
from burnish.stages.generate import speakers_of
from burnish.text import plain

ROUNDED = "the base that this adapter was trained on is quantized, in a way that GGUF does not have"


def export_to(console: Console, wish: Wish, run: Run, adapter: Path, output: Path) -> Exported:
    with written_whole(output) as folder:
        work = _distilled(console, wish, run, folder) if wish.form == "lora" else _loaded(console, wish, run, adapter)
        facts = {"form": wish.form, "adapter_scope": work.source.scope, "burnish": burnish.__version__} | work.facts
        facts |= FORMS[wish.form](work, folder)
        write_card(work.source, facts, folder)
        write_facts(folder, facts)
    return Exported(wish.form, output, facts)


def _loaded(console: Console, wish: Wish, run: Run, adapter: Path) -> Work:
    source = load_source(console, wish, run, adapter)
    with terminal.busy(console, f"burnish answers {len(source.prompts)} prompts"):
        own = source.answers()
    taught = read_facts(adapter) if wish.lora is not None else {}
    return Work(console, wish, source, own, {key: taught[key] for key in ("distilled",) if key in taught})


def _distilled(console: Console, wish: Wish, run: Run, folder: Path) -> Work:
    """An ordinary LoRA that was taught just now takes the place of the run's own."""
    pupil = Pupil(console, wish, run)
    teacher = pupil.teacher_source(run, wish)  # refuses a prompt that cannot be asked, before it is taught
    facts = pupil.taught()
    with terminal.busy(console, f"teacher and student answer {len(teacher.prompts)} prompts"):
        taught = teacher.answers()
        saved = folder / ".taught"
        pupil.save(saved)
        student = pupil.student_source(run, saved, teacher.prompts)
        own = student.answers()
    same = sum(a.tokens == b.tokens for a, b in zip(taught, own, strict=True))
    say_same(console, same, len(own))
    facts |= {"same_answers": same, "num_answers": len(own), TEACHER: weights_digest(run.policy_folder)}
    return Work(console, wish, student, own, {"distilled": facts})


def _lora(work: Work, folder: Path) -> dict[str, Any]:
    try:
        return _adapter(work, folder)
    finally:
        shutil.rmtree(work.source.folder)


def load_source(console: Console, wish: Wish, run: Run, adapter: Path) -> Source:
    """The run's tuned model, or the base with an ordinary LoRA that was made from it."""
    speakers = speakers_of(console, str(run.folder), trust=wish.trust)
    name = speakers.adapters["tuned"]
    assert name is not None
    if wish.lora is not None:
        base, name = speakers.setup.base, ORDINARY
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
    facts: dict[str, Any] = field(default_factory=dict)

    def compared(self, consumer: str, answers: Callable[[], list[Answer]], *numbers: str) -> Sameness:
        """`numbers` are those that the consumer computes with, where they are not burnish's."""
        with terminal.busy(self.console, f"{consumer} loads it and answers"):
            theirs = answers()
        found = refuse_wrong(compare(self.source, self.own, theirs, consumer, (self.numbers, *numbers)))
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
    return _verified(work.compared("peft", lambda: consumers.from_peft(work.source, folder)))


def _merged(work: Work, folder: Path) -> dict[str, Any]:
    with terminal.busy(work.console, "folding the adapter into the weights"):
        write_merged(work.source, folder)
    found = work.compared("transformers", lambda: consumers.from_transformers(work.source, folder))
    return _verified(found)


def _gguf(work: Work, folder: Path) -> dict[str, Any]:
    source, gguf_type = work.source, work.wish.gguf_type
    if work.wish.merged:
        refuse_unmergeable(source)
        file = folder / f"model-{gguf_type}.gguf"
        with terminal.busy(work.console, "writing the whole model as GGUF"):
            gguf_model(source, file, gguf_type, with_adapter=True)
        return {"files_named": {"model": file.name}, "type": gguf_type} | _tried_by_llama_cpp(work, gguf_type, file)
    why = ROUNDED if is_quantized(source) else why_no_model(source)
    if why is not None and work.wish.with_base:
        raise InputError(f"--with-base cannot be done for this run: {why}. Leave it out to get the adapter alone")
    file = folder / ADAPTER
    gguf_adapter(source, file)
    named: dict[str, Any] = {"files_named": {"adapter": file.name}, "type": gguf_type}
    if why is not None:
        return named | {"verified": False, "not_verified": f"llama.cpp needs the base as GGUF too, and {why}."}
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".base-") as scratch:
        base = Path(scratch) / "base.gguf"
        if work.wish.with_base:
            base = folder / f"base-{gguf_type}.gguf"
            named["files_named"]["base"] = base.name
        with terminal.busy(work.console, "writing the base as GGUF, to try the adapter on"):
            gguf_model(source, base, gguf_type, with_adapter=False)
        return named | _tried_by_llama_cpp(work, gguf_type, base, file)


def _ollama(work: Work, folder: Path) -> dict[str, Any]:
    """ollama runs a llama.cpp of its own; ours can at least try the files that it is given."""
    source, gguf_type = work.source, work.wish.gguf_type
    refuse_unmergeable(source)
    write_modelfile(source, folder)
    if why := why_no_model(source):
        raise InputError(why)
    with terminal.busy(work.console, "writing base and adapter as GGUF"):
        gguf_model(source, folder / BASE, gguf_type, with_adapter=False)
        gguf_adapter(source, folder / ADAPTER)
    found = _tried_by_llama_cpp(work, gguf_type, folder / BASE, folder / ADAPTER)
    left = "ollama itself was not run: the files were tried with llama.cpp, the Modelfile's template was not."
    if "not_verified" in found:
        left = f"ollama was not run, and neither was llama.cpp: {found['not_verified']}."
    return found | {"type": gguf_type, "verified": False, "not_verified": left}


def _tried_by_llama_cpp(work: Work, gguf_type: str, model: Path, adapter: Path | None = None) -> dict[str, Any]:
    if not consumers.has_llama_cpp():
        return {"verified": False, "not_verified": consumers.NO_LLAMA_CPP}
    return _verified(
        work.compared("llama.cpp", lambda: consumers.from_llama_cpp(work.source, model, adapter), gguf_type)
    )


FORMS: dict[str, Callable[[Work, Path], dict[str, Any]]] = {
    "adapter": _adapter,
    "merged": _merged,
    "gguf": _gguf,
    "lora": _lora,
    "ollama": _ollama,
}
