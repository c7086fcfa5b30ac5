"""A reward model from the hub or a folder, of any family: transformers' sequence classifiers."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from burnish.data.hub import hub_answers
from burnish.data.records import Messages, messages_of
from burnish.errors import InputError, RewardFailedError, is_out_of_memory, nearest
from burnish.rewards.part import RewardPart, Workshop

if TYPE_CHECKING:
    from torch import Tensor

FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")  # weights, config, tokenizer and template


class ClassifierPart(RewardPart):
    """A sequence classifier that somebody trained: a reward model, or one that tells a tone, a topic, a danger. Code
    from the hub is never run, and weights are read as safetensors only.
    """

    path_keys = ("model",)
    kind: Literal["classifier"] = "classifier"
    model: str
    """Its name on the hub, or its folder."""
    label: str | int | None = None
    """Which of its outputs counts, by name or number. Needed where there are several."""
    score: Literal["logit", "probability"] = "logit"
    """The output as it is, or squeezed into 0 to 1: by a softmax over all labels, or, for a single label and where
    several may be true at once, by a sigmoid."""
    reads: Literal["conversation", "pair", "response"] = "conversation"
    """`conversation`: prompt and response as messages in its own chat template, or, if it has none, as one text.
    `pair`: as the two texts of a pair. `response`: the response alone."""
    max_length: int | None = Field(None, ge=1, le=10_000_000)
    """Most tokens that it reads. Unset: what it was made for. A prompt that is too long loses its beginning; a response
    that does not fit by itself is not scored."""
    batch_size: int = Field(16, ge=1, le=100_000)
    """Responses that it reads at once."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda`, `cuda:1` ..."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Its number format; `auto` is that of its files."""

    def check(self, workshop: Workshop) -> None:
        folder = Path(self.model)
        if not folder.is_dir():
            if self.model.startswith(("/", ".", "~")):
                raise InputError(f"the classifier's folder {self.model} does not exist")
            return  # a name on the hub: known when it is loaded
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            labels = {int(n): str(name) for n, name in config.get("id2label", {0: "LABEL_0", 1: "LABEL_1"}).items()}
        except (OSError, ValueError, AttributeError):
            raise InputError(f"the classifier's folder {self.model} has no config.json that can be read") from None
        number_of_label(self.label, labels, self.model)

    def make(self, workshop: Workshop) -> Classifier:
        return Classifier(self)

    def files(self) -> list[Path]:
        folder = _folder_of(self.model)
        return [] if folder is None else sorted({file for kind in FILES for file in folder.glob(kind)})

    def deeds(self) -> Iterator[str]:
        folder = Path(self.model)
        yield f"read the model in {folder.resolve()}" if folder.is_dir() else f"ask the model hub for {self.model}"


class Classifier:
    """Asks a sequence classifier what it thinks of responses, several at once."""

    __name__ = "classifier"

    def __init__(self, part: ClassifierPart) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        self.part = part
        self.tokenizer = _from_pretrained(AutoTokenizer, part.model)
        model, found = _from_pretrained(
            AutoModelForSequenceClassification,
            part.model,
            dtype=part.dtype,
            use_safetensors=True,
            output_loading_info=True,
        )
        if found["missing_keys"]:  # which were filled with random numbers
            lacking = ", ".join(sorted(found["missing_keys"])[:3])
            raise InputError(
                f"{part.model} is not a classifier: its files lack {lacking}. Name a model that was trained to score"
            )
        self.model = model.to(_device(part.device)).eval()
        self.label = number_of_label(part.label, model.config.id2label, part.model)
        limits = (part.max_length, self.tokenizer.model_max_length, _positions(model))
        self.max_length = min(limit for limit in limits if limit is not None)
        # Which of several texts end where is known by their padding; without a pad token they are read one by one.
        self.batch_size = 1 if self.tokenizer.pad_token_id is None else part.batch_size
        model.config.pad_token_id = self.tokenizer.pad_token_id

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
        encoded = [self.encode(p, r) for p, r in zip(prompts, responses, strict=True)]
        order = sorted(range(len(encoded)), key=lambda n: len(encoded[n]["input_ids"]))  # alike lengths pad little
        scores = [0.0] * len(encoded)
        for first in range(0, len(order), self.batch_size):
            batch = order[first : first + self.batch_size]
            for number, score in zip(batch, self._score([encoded[n] for n in batch]), strict=True):
                scores[number] = score
        return scores

    def _score(self, encoded: list[Mapping[str, list[int]]]) -> list[float]:
        import torch

        width, device = max(len(one["input_ids"]) for one in encoded), self.model.device
        padding = {"input_ids": self.tokenizer.pad_token_id}  # masks and kinds of tokens are padded with 0
        batch = {}
        for name in encoded[0]:
            rows = [one[name] + [padding.get(name, 0)] * (width - len(one[name])) for one in encoded]
            batch[name] = torch.tensor(rows, device=device)  # [B, T]
        with torch.inference_mode():
            logits = self.model(**batch).logits.float()  # [B, L]
        return self._chosen(logits).tolist()

    def _chosen(self, logits: Tensor) -> Tensor:
        """What counts of each response's outputs.  [B, L] -> [B]"""
        if self.part.score == "logit":
            return logits[:, self.label]
        several_may_be_true = self.model.config.problem_type == "multi_label_classification"
        if logits.shape[1] == 1 or several_may_be_true:
            return logits[:, self.label].sigmoid()
        return logits.softmax(1)[:, self.label]

    def encode(self, prompt: str, response: str) -> Mapping[str, list[int]]:
        """Tokens of prompt and response, the prompt cut at its beginning until they fit."""
        messages = list(messages_of(prompt) or [{"role": "user", "content": str(prompt)}])
        if self.part.reads == "response":
            messages = []
        elif self.part.reads == "pair" or not self.tokenizer.chat_template:
            messages = [{"role": "user", "content": str(prompt)}]
        encoded = self._tokens(messages, response)
        if self._fits(encoded):
            return encoded
        # As few characters as need be. Tokens cannot be cut: what they decode to may be more tokens than before.
        total = sum(len(message["content"]) for message in messages)
        number = bisect_left(
            range(total + 1), True, key=lambda n: self._fits(self._tokens(without_beginning(messages, n), response))
        )
        if number > total:
            raise RewardFailedError(
                f"a response has more than the {self.max_length} tokens that {self.part.model} reads; it begins "
                f"{response[:60]!r}"
            )
        return self._tokens(without_beginning(messages, number), response)

    def _fits(self, encoded: Mapping[str, list[int]]) -> bool:
        return len(encoded["input_ids"]) <= self.max_length

    def _tokens(self, messages: Messages, response: str) -> Mapping[str, list[int]]:
        prompt = messages[0]["content"] if messages else ""
        if self.part.reads == "pair":
            return dict(self.tokenizer(prompt, response))
        if self.part.reads == "response" or not self.tokenizer.chat_template:
            return dict(self.tokenizer(prompt + response))
        whole = [*messages, {"role": "assistant", "content": response}]
        text = self.tokenizer.apply_chat_template(whole, tokenize=False)
        return dict(self.tokenizer(text, add_special_tokens=False))


def without_beginning(messages: Messages, number: int) -> Messages:
    """A chat without the first characters of its texts. Turns that are empty then go, up to a user's, which stays: many
    templates accept no chat that begins otherwise.
    """
    kept = []
    for message in messages:
        kept.append(message | {"content": message["content"][number:]})
        number = max(0, number - len(message["content"]))
    said = next((n for n, message in enumerate(kept) if message["content"]), len(kept) - 1)
    users = [n for n, message in enumerate(kept[: said + 1]) if message["role"] == "user"]
    return kept[users[-1] :] if users else kept


def number_of_label(label: str | int | None, labels: Mapping[int, str], model: str) -> int:
    """Which output a label is."""
    known = ", ".join(f"{number} ({name})" for number, name in sorted(labels.items())[:20])
    if label is None and len(labels) == 1:
        return 0
    if label is None:
        raise InputError(f"the classifier {model} has several outputs; say which counts, by name or number: {known}")
    found = [n for n, name in labels.items() if label in (n, name)]
    if not found:
        hint = nearest(str(label), labels.values())
        raise InputError(f"the classifier {model} has no label {label!r}; it has {known}{hint}")
    return found[0]


def _folder_of(model: str) -> Path | None:
    """Where its files lie: its own folder, or that of the hub's cache; None if it is not there yet."""
    if Path(model).is_dir():
        return Path(model)
    import huggingface_hub

    try:
        cached = huggingface_hub.try_to_load_from_cache(model, "config.json")
    except ValueError:  # what is no hub id is refused when it is loaded
        return None
    return Path(cached).parent if isinstance(cached, str) else None


def _from_pretrained(kind: Any, model: str, **options: Any) -> Any:
    is_folder = Path(model).is_dir()
    local_only = is_folder or not hub_answers()
    load: Callable[..., Any] = kind.from_pretrained
    try:
        return load(model, trust_remote_code=False, local_files_only=local_only, **options)
    except Exception as error:  # of many kinds: files, formats, families, the network
        if is_out_of_memory(error):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        hub = " (no model hub answers from here)" if local_only and not is_folder else ""
        raise InputError(f"cannot load the classifier {model!r}{hub}: {reason}") from None


def _device(wanted: str) -> Any:
    import torch

    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.zeros(0, device=wanted).device
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {wanted!r} cannot be used here: {str(error).splitlines()[0]}") from None


def _positions(model: Any) -> int | None:
    """How many tokens have a place. RoBERTa and its kin count from behind their pad token's number."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    tables = [module for name, module in model.named_modules() if name.endswith("embeddings.position_embeddings")]
    padding = getattr(tables[0], "padding_idx", None) if tables else None
    return positions if positions is None or padding is None else positions - padding - 1
