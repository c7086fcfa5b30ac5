"""What was said to the speakers of a run, what each answered, and how they are asked."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from burnish.errors import InputError, nearest
from burnish.rollout.sampling import Sampler
from burnish.runs.disk import write_whole
from burnish.serving.answer import Question, sampler_of
from burnish.serving.served import Served

LIMITS: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 1000.0),
    "top_k": (0, 10**6),
    "top_p": (0.001, 1.0),
    "max_tokens": (1, 10**6),
    "seed": (0, 2**31 - 1),
}


@dataclass(frozen=True)
class How:
    """Answers are drawn."""

    temperature: float
    top_k: int
    top_p: float
    max_tokens: int
    seed: int = 0

    def changed(self, name: str, text: str) -> How:
        if name not in LIMITS:
            raise InputError(f"there is no setting {name!r:.40}{nearest(name, LIMITS)}; {self.known()}")
        low, high = LIMITS[name]
        value: Any
        try:
            value = type(low)(text)
        except ValueError:
            value = None
        if value is None or not low <= value <= high:  # what is no number is not between them either
            kind = "a whole number" if isinstance(low, int) else "a number"
            raise InputError(f"{name} is {text!r:.40}; it must be {kind} from {low:g} to {high:g}")
        return replace(self, **{name: value})

    def known(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in asdict(self).items())

    @property
    def sampler(self) -> Sampler:
        return sampler_of(self.temperature, self.top_k, self.top_p)


@dataclass
class Turn:
    prompt: str
    answers: dict[str, str]
    """By speaker."""
    how: How


@dataclass
class Conversation:
    served: Served
    how: How
    turns: list[Turn] = field(default_factory=list)
    _first: int = 0
    """Turn that the models still know of."""
    _own_files: set[Path] = field(default_factory=set)

    @property
    def speakers(self) -> list[str]:
        """The start first."""
        return list(self.served.speakers.adapters)

    @property
    def is_chat(self) -> bool:
        """Else every prompt is a text of its own, which is continued."""
        return self.served.speakers.setup.encoder.chat_template

    def reset(self) -> None:
        """The models forget what was said; what is saved does not."""
        self._first = len(self.turns)

    def question(self, speaker: str, prompt: str) -> Question:
        """As the speaker hears it: behind what it has heard and said before."""
        adapter = self.served.speakers.adapters[speaker]
        if self.is_chat:
            messages = []
            for turn in self.turns[self._first :]:
                if speaker in turn.answers:
                    messages.append({"role": "user", "content": turn.prompt})
                    messages.append({"role": "assistant", "content": turn.answers[speaker]})
            ids = self.served.read_chat(adapter, [*messages, {"role": "user", "content": prompt}])
        else:
            ids = self.served.read_text(adapter, prompt)
        self.served.room_for_answer(ids, None)  # refuses where there is none
        most = min(self.how.max_tokens, self.served.context_length - len(ids))
        return Question(adapter, ids, most, self.how.sampler, seed=self.how.seed + len(self.turns))

    def save(self, file: str) -> Path:
        """All that was said. Only a file that was saved here is written over."""
        turns = [{"prompt": t.prompt, "answers": t.answers, "drawn_with": asdict(t.how)} for t in self.turns]
        said: dict[str, Any] = {"run": str(self.served.run.folder), "turns": turns}
        try:
            path = Path(file).expanduser()
            if path.exists() and path.resolve() not in self._own_files:
                raise InputError(f"{path} is there already; choose another name")
            if not path.parent.is_dir():
                raise InputError(f"there is no folder {path.parent}")
            write_whole(path, json.dumps(said, indent=2, ensure_ascii=False) + "\n")
        except InputError:
            raise
        except (OSError, RuntimeError, ValueError) as error:  # a folder without rights, a home of nobody, a zero byte
            raise InputError(f"{file!r:.200} cannot be written ({error}); choose another name") from None
        self._own_files.add(path.resolve())
        return path
