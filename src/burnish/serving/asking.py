"""Requests as OpenAI's API has them, read strictly: what is not understood is refused, never left out in silence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from burnish.errors import InputError, nearest
from burnish.serving.answer import Question, sampler_of
from burnish.serving.served import Served, TooLongError, UnknownModelError

MOST_STOPS = 4
LONGEST_STOP = 1000  # letters
MOST_LOGPROBS = {"chat": 20, "text": 5}
LARGEST_SEED = 2**63 - 1
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
COMMON = ("model", "max_tokens", "temperature", "top_p", "top_k", "stop", "seed", "n", "stream", "stream_options")
OWN = {
    "chat": ("messages", "max_completion_tokens", "logprobs", "top_logprobs"),
    "text": ("prompt", "logprobs"),
}
# What changes no answer.
IGNORED = ("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier")
# What would change answers, and the values with which it does not: clients send them unasked.
ONLY: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "store": (False,),
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "verbosity": ("medium",),
}


class RefusedError(Exception):
    """In OpenAI's shape: what is wrong, with which parameter."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param, self.status, self.code = message, param, status, code


@dataclass(frozen=True)
class Asked:
    """A request that can be answered."""

    kind: str
    """`chat` or `text`."""
    model: str
    questions: list[Question]
    is_streamed: bool
    tells_usage: bool


class _Body:
    """The values of a request; None is the same as nothing."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = {name: value for name, value in values.items() if value is not None}

    def number(self, name: str, low: float, high: float, usual: Any = None) -> Any:
        value = self.values.get(name, usual)
        if value is None or value is usual:
            return value
        whole = isinstance(low, int)
        is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if not is_number or not low <= value <= high:  # NaN is not between them either
            kind = "a whole number" if whole else "a number"
            raise RefusedError(f"{name} is {value!r:.40}; it must be {kind} from {low:g} to {high:g}", name)
        return value

    def switch(self, name: str) -> bool:
        value = self.values.get(name, False)
        if not isinstance(value, bool):
            raise RefusedError(f"{name} is {value!r:.40}; it must be true or false", name)
        return value


def read(served: Served, kind: str, values: Any, max_answers: int, max_tokens: int) -> Asked:
    """`max_answers` and `max_tokens` are what the engine has room for."""
    if not isinstance(values, dict):
        raise RefusedError("the body must be a JSON object")
    _check_names(kind, values)
    body = _Body(values)
    model = body.values.get("model")
    if not isinstance(model, str):
        raise RefusedError(f"model is needed: {' or '.join(served.models)}", "model")
    try:
        adapter = served.adapter(model)
    except UnknownModelError as error:
        raise RefusedError(str(error), "model", 404, "model_not_found") from None
    streamed = body.switch("stream")
    how = _how(served, kind, body)
    if kind == "chat":
        prompts = _conversation(served, adapter, body)
    else:
        prompts = _texts(served, adapter, body, max_answers)
    wanted = body.number("max_completion_tokens", 1, 2**31) or body.number("max_tokens", 1, 2**31)
    questions = []
    for ids in prompts:
        try:
            questions.append(Question(adapter, ids, served.room_for_answer(ids, wanted), **how))
        except TooLongError as error:
            raise RefusedError(str(error), _source(kind), code="context_length_exceeded") from None
    _check_room(kind, questions, max_answers, max_tokens)
    return Asked(kind, model, questions, streamed, _tells_usage(body, streamed))


def _check_names(kind: str, values: Mapping[str, Any]) -> None:
    known = (*COMMON, *OWN[kind])
    for name, value in values.items():
        if name in known or name in IGNORED or value is None:
            continue
        if name in ONLY:
            if value not in ONLY[name]:
                raise RefusedError(f"{name} is not supported here; leave it out", name, code="unsupported_parameter")
            continue
        raise RefusedError(f"there is no parameter {name!r:.60}{nearest(name, known)}", name, code="unknown_parameter")


def _how(served: Served, kind: str, body: _Body) -> dict[str, Any]:
    """What all questions of the request share."""
    usual = served.usual
    temperature = body.number("temperature", 0.0, 1000.0, usual["temperature"])
    top_k, top_p = body.number("top_k", 0, 10**6, usual["top_k"]), body.number("top_p", 0.0, 1.0, usual["top_p"])
    if top_p == 0:
        raise RefusedError("top_p is 0, which keeps no token; for the most likely one set temperature to 0", "top_p")
    return {
        "sampler": sampler_of(temperature, top_k, top_p),
        "stop": _stops(body),
        "seed": body.number("seed", 0, LARGEST_SEED),
        "num_answers": body.number("n", 1, 10**6, 1),
        "top_logprobs": _top_logprobs(kind, body),
    }


def _top_logprobs(kind: str, body: _Body) -> int | None:
    most = MOST_LOGPROBS[kind]
    if kind == "text":
        return body.number("logprobs", 0, most)
    wanted, number = body.switch("logprobs"), body.number("top_logprobs", 0, most)
    if number is not None and not wanted:
        raise RefusedError("top_logprobs needs logprobs: true", "top_logprobs")
    return (number or 0) if wanted else None


def _stops(body: _Body) -> tuple[str, ...]:
    stops = body.values.get("stop", [])
    stops = [stops] if isinstance(stops, str) else stops
    if not isinstance(stops, list) or not all(isinstance(s, str) and 0 < len(s) <= LONGEST_STOP for s in stops):
        raise RefusedError(f"stop must be texts of 1 to {LONGEST_STOP} letters", "stop")
    if len(stops) > MOST_STOPS:
        raise RefusedError(f"stop has {len(stops)} texts; {MOST_STOPS} are the most", "stop")
    return tuple(stops)


def _tells_usage(body: _Body, streamed: bool) -> bool:
    options = body.values.get("stream_options")
    if options is None:
        return False
    if not streamed:
        raise RefusedError("stream_options needs stream: true", "stream_options")
    unknown = [name for name in options if name != "include_usage"] if isinstance(options, dict) else ["it"]
    if unknown or not isinstance(options.get("include_usage", False), bool):
        raise RefusedError('stream_options takes {"include_usage": true} alone', "stream_options")
    return bool(options.get("include_usage"))


def _texts(served: Served, adapter: str | None, body: _Body, most: int) -> list[list[int]]:
    prompt = body.values.get("prompt")
    several: list[Any] = [prompt]
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        several = prompt
    if len(several) > most:  # before they are read, which takes time
        raise RefusedError(f"{len(several)} prompts are asked; {most} are the most at a time", "prompt")
    found = []
    for own in several:
        is_tokens = isinstance(own, list) and all(isinstance(t, int) and not isinstance(t, bool) for t in own)
        if not isinstance(own, str) and not is_tokens:
            raise RefusedError("prompt must be a text or a list of token numbers, or a list of these", "prompt")
        try:
            found.append(served.read_text(adapter, own))
        except InputError as error:
            raise RefusedError(str(error), "prompt") from None
    return found


def _conversation(served: Served, adapter: str | None, body: _Body) -> list[list[int]]:
    messages = body.values.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RefusedError("messages must be a list of at least one message", "messages")
    read = [_message(number, message) for number, message in enumerate(messages)]
    try:
        return [served.read_chat(adapter, read)]
    except InputError as error:
        raise RefusedError(str(error), "messages") from None


def _message(number: int, message: Any) -> dict[str, str]:
    where = f"messages[{number}]"
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str) or role not in ROLES:
        raise RefusedError(f"{where} needs a role: {', '.join(ROLES)}", where)
    unknown = [name for name, value in message.items() if name not in ("role", "content") and value is not None]
    if unknown:
        raise RefusedError(f"{where} has {unknown[0]!r:.40}, which is not supported here", where)
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
        texts = [part.get("text") for part in content]
        content = "".join(texts) if all(isinstance(text, str) for text in texts) else None
    if not isinstance(content, str):
        raise RefusedError(f"{where}.content must be text", where)
    return {"role": ROLES[role], "content": content}


def _check_room(kind: str, questions: list[Question], max_answers: int, max_tokens: int) -> None:
    answers = sum(question.num_answers for question in questions)
    if answers > max_answers:
        raise RefusedError(f"{answers} answers are asked for; {max_answers} are the most at a time", "n")
    tokens = max(question.reserved for question in questions)
    if tokens > max_tokens:
        raise RefusedError(
            f"prompt and answers may have {tokens} tokens, and there is memory for {max_tokens}; ask for less, or "
            "start the server with a larger --cache-mb",
            _source(kind),
        )


def _source(kind: str) -> str:
    return "messages" if kind == "chat" else "prompt"
