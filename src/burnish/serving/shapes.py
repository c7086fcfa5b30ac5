"""Answers in OpenAI's shapes: whole, or piece by piece."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from burnish.serving.answer import Piece, Told
from burnish.serving.asking import Asked, RefusedError

Json = dict[str, Any]
NAMES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
         404: "invalid_request_error", 413: "invalid_request_error", 429: "rate_limit_error"}  # fmt: skip


def error(message: str, status: int, param: str | None = None, code: str | None = None) -> Json:
    return {"error": {"message": message, "type": NAMES.get(status, "server_error"), "param": param, "code": code}}


def refusal(refused: RefusedError) -> Json:
    return error(refused.message, refused.status, refused.param, refused.code)


@dataclass
class Choice:
    """One answer, as it has been heard so far."""

    text: str = ""
    tokens: list[Told] = field(default_factory=list)
    finish: str | None = None

    def hear(self, piece: Piece) -> None:
        self.text += piece.text
        self.tokens += piece.tokens
        self.finish = piece.finish


class Shapes:
    """Of the answers to one request."""

    def __init__(self, asked: Asked, tokenizer: Any) -> None:
        self.asked = asked
        self.is_chat = asked.kind == "chat"
        self._tells_logprobs = asked.questions[0].top_logprobs is not None
        self._tokenizer = tokenizer
        self._begun: set[int] = set()  # answers whose first piece was sent
        kind = "chat.completion" if self.is_chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if self.is_chat else 'cmpl'}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": asked.model,
        }
        self._kind = kind

    def whole(self, choices: Sequence[Choice], num_tokens: int) -> Json:
        made = []
        for number, choice in enumerate(choices):
            logprobs = self._logprobs(choice.tokens)
            said = {"message": {"role": "assistant", "content": choice.text, "refusal": None}}
            own = said if self.is_chat else {"text": choice.text}
            made.append({"index": number, **own, "logprobs": logprobs, "finish_reason": choice.finish})
        return {**self._head, "object": self._kind, "choices": made, "usage": self.usage(num_tokens)}

    def piece(self, piece: Piece) -> Json:
        """One of a stream's."""
        if self.is_chat:
            delta: Json = {} if piece.number in self._begun else {"role": "assistant", "content": ""}
            if piece.text:
                delta["content"] = piece.text
            own: Json = {"delta": delta}
        else:
            own = {"text": piece.text}
        self._begun.add(piece.number)
        logprobs = self._logprobs(piece.tokens) if piece.tokens or not self.is_chat else None
        return self._chunk([{"index": piece.number, **own, "logprobs": logprobs, "finish_reason": piece.finish}])

    def last(self, num_tokens: int) -> Json:
        """What a stream ends with if its usage was asked for."""
        return self._chunk([]) | {"usage": self.usage(num_tokens)}

    def usage(self, num_tokens: int) -> Json:
        prompt = sum(len(question.prompt) for question in self.asked.questions)
        return {"prompt_tokens": prompt, "completion_tokens": num_tokens, "total_tokens": prompt + num_tokens}

    def _chunk(self, choices: list[Json]) -> Json:
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        chunk = {**self._head, "object": kind, "choices": choices}
        return chunk | {"usage": None} if self.asked.tells_usage else chunk

    def _logprobs(self, tokens: Sequence[Told]) -> Json | None:
        if not self._tells_logprobs:
            return None
        if self.is_chat:
            return {"content": [self._told(own) for own in tokens], "refusal": None}
        return {
            "tokens": [self._decoded(own.token) for own in tokens],
            "token_logprobs": [own.logprob for own in tokens],
            "top_logprobs": [self._likeliest(own) for own in tokens],
            "text_offset": [own.offset for own in tokens],
        }

    def _likeliest(self, told: Told) -> Json:
        """By text: of tokens that are parts of characters and look alike, the likeliest is told."""
        return {self._decoded(token): logprob for token, logprob in reversed(told.likeliest)}

    def _told(self, told: Told) -> Json:
        likeliest = [self._token(token, logprob) for token, logprob in told.likeliest]
        return self._token(told.token, told.logprob) | {"top_logprobs": likeliest}

    def _token(self, token: int, logprob: float) -> Json:
        """`bytes` are told where the token is a text by itself, not a part of a character."""
        text = self._decoded(token)
        return {"token": text, "logprob": logprob, "bytes": None if "\ufffd" in text else list(text.encode())}

    def _decoded(self, token: int) -> str:
        return self._tokenizer.decode([token])
