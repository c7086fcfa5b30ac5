"""Try: start and tuned model answer side by side, word by word; what the reward thinks of a text. The models live in a
process of their own (computing.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator

from burnish.config import PPOConfig
from burnish.errors import InputError
from burnish.evaluation.said import SIDES, Said
from burnish.page.judge import LONGEST_ANSWER, judge_of
from burnish.page.view import Action, Asked, Data, Stream, View, quoted

LIMITS = {"temperature": (0.0, 1000.0), "top_k": (0, 4096), "top_p": (0.001, 1.0), "max_new_tokens": (1, 10**6),
          "seed": (0, 2**31)}  # fmt: skip
"""Of what may be set; a temperature of 0 takes the most likely word."""


def data(asked: Asked) -> Data:
    """Path: `run`."""
    name = asked.path["run"]
    settings = asked.library.run(name).settings
    usual = PPOConfig.model_fields
    own = {key: settings.get(key, usual[key].default) for key in ("temperature", "top_k", "top_p", "max_new_tokens")}
    return asked.library.summary(name) | {"sampling": own | {"seed": 0}}


def ask(asked: Asked, gone: threading.Event) -> Generator[Data, None, None]:
    """Path: `run`. Form: `do`, `prompt`, and `response` for a score; else the sampling."""
    run = asked.library.run(asked.path["run"])
    question: Data = {"do": asked.choice("do", ("answer", "score")), "prompt": _text(asked, "prompt")}
    if question["do"] == "score":
        question |= {"response": _text(asked, "response"), "reference": asked.one("reference")}
    for key, (low, high) in LIMITS.items():
        if not asked.one(key):
            continue
        number = asked.number(key)
        if number is None or not low <= number <= high:
            raise InputError(f"{key} is {asked.one(key)!r:.40}; it is a number from {low:g} to {high:g}")
        question[key] = int(number) if isinstance(low, int) else number
    return asked.library.computing.ask(run.folder, question, gone)


def prefer(asked: Asked) -> Data:
    """Path: `run`. Form: `prompt`, `first`, `second`, `better` (one of these two), `from` (who gave each), `judge`."""
    run = asked.library.run(asked.path["run"])
    better, origins = asked.one("better"), asked.query.get("from", [])
    if better not in SIDES[1]:
        raise InputError(f"better is first or second, not {better!r:.40}")
    answers = {side: asked.one(side)[:LONGEST_ANSWER] for side in SIDES[1]}
    if answers["first"].strip() == answers["second"].strip():
        raise InputError("both answers are the same, so there is nothing to prefer")
    who = {"judge": judge} if (judge := judge_of(asked)) else {}
    row = {"prompt": _text(asked, "prompt")} | answers | {"better": better, "strength": 1} | who
    Said(run.folder).keep(row | {"from": origins[:2], "time": round(time.time(), 1)})
    return {"kept": True}


def _text(asked: Asked, key: str) -> str:
    text = asked.one(key).replace("\r\n", "\n")
    if not text.strip() or len(text) > LONGEST_ANSWER:
        raise InputError(f"{key} has {len(text)} characters; it needs 1 to {LONGEST_ANSWER}, and not blank")
    return text


VIEW = View("chat", "/chat/{run:path}", data, "Try", stages=("ppo", "sft", "reward"))
ASK = Stream("/chat/{run:path}", ask)
PREFER = Action("/prefer/{run:path}", prefer, lambda asked: f"/chat/{quoted(asked.path['run'])}")
