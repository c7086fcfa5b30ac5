"""Try: start, tuned model and checkpoints answer side by side, word by word; what the reward thinks of a text. The
models live in a process of their own (computing.py).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Generator

from burnish.config import PPOConfig
from burnish.data.cells import Messages, as_text, messages_in
from burnish.errors import InputError
from burnish.evaluation.said import SIDES, Said
from burnish.page.judge import LONGEST_ANSWER, judge_of
from burnish.page.view import Action, Asked, Data, Stream, View, quoted
from burnish.runs.checkpoints import Checkpoints
from burnish.runs.run import Run

LIMITS = {"temperature": (0.0, 1000.0), "top_k": (0, 4096), "top_p": (0.001, 1.0), "max_new_tokens": (1, 10**6),
          "seed": (0, 2**31)}  # fmt: skip
"""Of what may be set; a temperature of 0 takes the most likely word."""


def data(asked: Asked) -> Data:
    """Path: `run`."""
    name = asked.path["run"]
    run = asked.library.run(name)
    settings = run.settings
    usual = PPOConfig.model_fields
    own = {key: settings.get(key, usual[key].default) for key in ("temperature", "top_k", "top_p", "max_new_tokens")}
    return asked.library.summary(name) | {
        "sampling": own | {"seed": 0},
        "speakers": _speakers(run),
        "is_chat": bool(settings.get("chat_template")),
    }


def _speakers(run: Run) -> list[str]:
    """Who can be asked; the last two are those asked unless others are chosen. What no step left answers nothing."""
    if run.stage == "reward":
        return []
    tuned = ["tuned"] if run.path(f"adapters/{'sft' if run.stage == 'sft' else 'policy'}").is_dir() else []
    steps = [f"step {step}" for step in Checkpoints(run.folder / "checkpoints").steps()]
    return ["start", *steps, *tuned] if tuned or run.stage == "ppo" else ["start"]


def ask(asked: Asked, gone: threading.Event) -> Generator[Data, None, None]:
    """Path: `run`. Form: `do`, `prompt`, and `response` for a score; else `who`, `messages` and the sampling."""
    run = asked.library.run(asked.path["run"])
    question: Data = {"do": asked.choice("do", ("answer", "score")), "prompt": _text(asked, "prompt")}
    if question["do"] == "score":
        question |= {"response": _text(asked, "response"), "reference": asked.one("reference")}
    else:
        question |= _company(asked, run)
    for key, (low, high) in LIMITS.items():
        if not asked.one(key):
            continue
        number = asked.number(key)
        if number is None or not low <= number <= high:
            raise InputError(f"{key} is {asked.one(key)!r:.40}; it is a number from {low:g} to {high:g}")
        question[key] = int(number) if isinstance(low, int) else number
    return asked.library.computing.ask(run.folder, question, gone)


def _company(asked: Asked, run: Run) -> Data:
    """Who is asked, and what was said before; only what is sent."""
    told: Data = {}
    if who := asked.query.get("who"):
        known = _speakers(run)
        if len(who) != 2 or who[0] == who[1] or not {*who} <= {*known}:
            raise InputError(f"who is asked are two of: {', '.join(known)}; not {', '.join(who)!r:.60}")
        told["who"] = who
    if before := _before(asked):
        told["messages"] = before
    return told


def _before(asked: Asked) -> Messages:
    """The conversation up to the last answer."""
    text = asked.one("messages")
    if not text:
        return []
    if len(text) > LONGEST_ANSWER:
        raise InputError(f"messages have {len(text)} characters; {LONGEST_ANSWER} is the most")
    try:
        told = json.loads(text)
    except ValueError as error:
        raise InputError(f"messages are no JSON: {error}") from None
    messages = messages_in(told, "messages")
    if messages[-1]["role"] != "assistant":
        raise InputError("messages end with the last answer; what is said now is the prompt")
    return messages


def prefer(asked: Asked) -> Data:
    """Path: `run`. Form: `prompt`, `messages` (before it), `first`, `second`, `better` (one of these two), `from` (who
    gave each), `judge`.
    """
    run = asked.library.run(asked.path["run"])
    better, origins = asked.one("better"), asked.query.get("from", [])
    if better not in SIDES[1]:
        raise InputError(f"better is first or second, not {better!r:.40}")
    answers = {side: asked.one(side)[:LONGEST_ANSWER] for side in SIDES[1]}
    if answers["first"].strip() == answers["second"].strip():
        raise InputError("both answers are the same, so there is nothing to prefer")
    who = {"judge": judge} if (judge := judge_of(asked)) else {}
    prompt: Data = {"prompt": _text(asked, "prompt")}
    if before := _before(asked):
        messages = [*before, {"role": "user", "content": prompt["prompt"]}]
        prompt = {"prompt": as_text(messages), "messages": messages}
    row = prompt | answers | {"better": better, "strength": 1} | who
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
