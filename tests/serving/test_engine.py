"""The decode loop that all questions share: what one is answered does not depend on the others."""

import threading
import time
from dataclasses import replace

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from burnish.decoder.shared_base import SharedBase
from burnish.models.policy_model import PolicyModel
from burnish.rollout.local import LocalEngine
from burnish.rollout.sampling import Sampler
from burnish.serving.answer import Answer, Question
from burnish.serving.batch import GROWS_BY, Batch
from burnish.serving.engine import BusyError, Engine, Limits
from families import family_model
from talkers import GREEDY, Heard, served_run, texts_of, tiny_run, together
from tiny import tiny_tokenizer

PROMPTS = ["a:", "hello there:", "the quick brown fox jumps over it:", "x y:", "why not, then, after all this:", "go:"]


@pytest.fixture(scope="module", params=["response", "sequence"])
def run(request, tmp_path_factory):
    return tiny_run(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def served(run):
    return served_run(run)


@pytest.fixture
def engine(served):
    made = Engine(served.speakers.setup.base, Limits())
    yield made
    made.close()
    made.join(10)


def question(served, prompt, speaker="tuned", sampler=GREEDY, max_tokens=24, **more):
    adapter = served.speakers.adapters[speaker]
    return Question(adapter, served.read_text(adapter, prompt), max_tokens, sampler, **more)


def test_greedy_answers_are_those_of_burnish_generate(served, engine):
    for speaker in served.speakers.adapters:
        expected = served.speakers.answers(speaker, PROMPTS, GREEDY, seed=0)
        assert together(engine, [question(served, p, speaker) for p in PROMPTS]) == expected
        assert texts_of(engine, [question(served, p, speaker) for p in PROMPTS]) == expected


def test_greedy_answers_are_those_of_transformers_and_peft(run, served, engine):
    model = AutoModelForCausalLM.from_pretrained(run.parent / "model")
    tokenizer = served.speakers.setup.base.tokenizer
    told = {}
    for speaker in ("base", "tuned"):
        if speaker == "tuned":
            model = PeftModel.from_pretrained(model, run / "adapters" / "policy").eval()
        for prompt in PROMPTS[:3]:
            ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
            out = model.generate(input_ids=ids, do_sample=False, max_new_tokens=24, pad_token_id=257)
            told[speaker, prompt] = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
    assert together(engine, [question(served, p, s) for s, p in told]) == list(told.values())
    assert told["base", "a:"] != told["tuned", "a:"]


def test_a_seed_gives_the_same_text_alone_and_among_others(served, engine):
    sampler = Sampler(0.9, top_k=50, top_p=0.95)
    asked = [question(served, p, sampler=sampler, seed=7) for p in PROMPTS]
    alone = [texts_of(engine, [own])[0] for own in asked]
    assert alone == [served.speakers.answers("tuned", [p], sampler, seed=7)[0] for p in PROMPTS]
    others = [question(served, p, "base", Sampler(1.3), seed=3, max_tokens=5 + n) for n, p in enumerate(PROMPTS)]
    mixed = together(engine, [own for pair in zip(others, asked, strict=True) for own in pair])
    assert mixed[1::2] == alone


def test_a_late_question_joins_those_under_way(served, engine):
    """It is answered while an earlier and longer one is still being answered, and both as they would be alone."""
    long, short = question(served, "x y:", max_tokens=200, sampler=Sampler(), seed=1), question(served, PROMPTS[4])
    short = Question(short.adapter, short.prompt, 4, GREEDY)
    alone = [texts_of(engine, [own])[0] for own in (long, short)]
    first, second = Heard(), Heard()
    engine.ask([long], first.pieces.put)
    begun = [first.pieces.get(timeout=60) for _ in range(2)]
    engine.ask([short], second.pieces.put)
    joined = second.wait(1)[0]
    assert first.pieces.qsize() < 150
    rest = first.wait(1)[0]
    assert ["".join(p.text for p in own) for own in ([*begun, *rest], joined)] == alone


def test_several_answers_to_one_question_differ_and_the_first_is_that_of_the_seed(served, engine):
    several = texts_of(engine, [question(served, "go:", sampler=Sampler(), seed=5, num_answers=4)])
    assert several[0] == texts_of(engine, [question(served, "go:", sampler=Sampler(), seed=5)])[0]
    assert len(set(several)) == 4


def test_more_than_fit_wait_for_their_turn(served):
    base = served.speakers.setup.base
    longest = max(question(served, p).longest for p in PROMPTS) + 64
    cache_mb = 3 * longest * base.key_bytes / 2**20
    engine = Engine(base, Limits(max_batch=4, cache_mb=cache_mb))
    widest = []
    step = engine._admit

    def admit():
        step()
        widest.append(sum(len(batch.live) for batch in engine._batches))

    engine._admit = admit
    expected = served.speakers.answers("tuned", PROMPTS, GREEDY, seed=0)
    assert together(engine, [question(served, p) for p in PROMPTS]) == expected
    assert 1 < max(widest) <= 3
    engine.close()


def test_who_goes_away_frees_his_place(served, engine):
    heard, left = Heard(), threading.Event()
    asked = question(served, "go:", max_tokens=240)
    job = engine.ask([asked], lambda piece: (heard.pieces.put(piece), left.wait(30)))
    heard.pieces.get(timeout=60)
    job.leave()
    left.set()
    until(lambda: engine.num_requests == 0)
    assert (job.answers[0].finish, job.answers[0].num_tokens < 20) == ("gone", True)


def test_too_many_are_told_so(served):
    engine = Engine(served.speakers.setup.base, Limits(max_requests=2))
    held = threading.Event()
    heard = [Heard() for _ in range(2)]
    for own in heard:
        engine.ask([question(served, "go:")], lambda piece, own=own: (held.wait(30), own.pieces.put(piece)))
    with pytest.raises(BusyError, match="2 requests are answered or wait"):
        engine.ask([question(served, "go:")], print)
    held.set()
    for own in heard:
        own.wait(1)
    until(lambda: engine.num_requests == 0)
    assert texts_of(engine, [question(served, "go:")])
    engine.close()


def test_what_takes_too_long_ends_in_a_trouble(served):
    engine = Engine(served.speakers.setup.base, Limits(seconds=0.05))
    slow = Heard()
    engine.ask([question(served, "go:", max_tokens=240)], lambda piece: (time.sleep(0.02), slow.pieces.put(piece)))
    last = slow.wait(1)[0][-1]
    assert (last.finish, last.trouble.status) == ("error", 504)
    assert last.trouble.message == "it was not answered within 0.05 seconds"
    engine.close()


def test_closing_lets_answers_end_and_takes_no_more(served):
    engine = Engine(served.speakers.setup.base, Limits())
    heard = Heard()
    engine.ask([question(served, "go:")], heard.pieces.put)
    engine.close(grace=30)
    with pytest.raises(BusyError, match="the server is ending"):
        engine.ask([question(served, "go:")], print)
    assert heard.wait(1)[0][-1].finish in ("stop", "length")
    engine.join(10)
    assert not engine.is_open


def test_a_ruined_model_is_told_of_and_the_engine_lives_on(served, engine, monkeypatch):
    decoder, logits = served.speakers.setup.base.decoder, served.speakers.setup.base.decoder.logits
    monkeypatch.setattr(decoder, "logits", lambda states: logits(states) * torch.nan)
    heard = Heard()
    engine.ask([question(served, "go:")], heard.pieces.put)
    assert "not finite" in heard.wait(1)[0][-1].trouble.message
    monkeypatch.undo()
    monkeypatch.setattr(decoder, "norm", lambda hidden: 1 / 0)
    engine.ask([question(served, "go:")], heard.pieces.put)
    assert heard.wait(1)[0][-1].trouble.message == "ZeroDivisionError: division by zero"
    monkeypatch.undo()
    assert texts_of(engine, [question(served, "go:")])


@torch.no_grad()
def test_the_cache_is_no_wider_than_its_longest_answer(served):
    """Who has left leaves no columns behind, however many come and go while others stay."""
    base, widths = served.speakers.setup.base, []
    batch = Batch(base, served.speakers.adapters["tuned"])
    asked = question(served, "go:", max_tokens=40)
    for turn in range(400):
        if turn % 15 == 0:
            batch.join([Answer(asked, 0, base.tokenizer, [], lambda piece: None)])
        batch.step()
        widths.append(batch._cache.room.shape[4])
    assert len(batch.live) >= 2
    assert max(widths) <= asked.longest + GROWS_BY


def until(condition):
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


@pytest.mark.parametrize("family", ["gemma2", "gpt2", "lfm2", "mamba"])
def test_other_families_are_answered_as_they_are_alone(family):
    """Windows, a model called as a whole, states beside keys and values, and a state of its own."""
    base = SharedBase(family_model(family), tiny_tokenizer(), scope="sequence", prompt_cache_bytes=2**20)
    engine, tokenizer = Engine(base, Limits()), base.tokenizer
    asked = [Question(None, tokenizer(p)["input_ids"], 8 + 6 * n, GREEDY) for n, p in enumerate(PROMPTS[:4])]
    speaker = PolicyModel(base, None)
    rollouts = [LocalEngine().generate(speaker, [q.prompt], q.max_tokens, GREEDY) for q in asked]
    expected = [tokenizer.decode(r.action[0], skip_special_tokens=True) for r in rollouts]
    assert together(engine, asked) == expected
    assert texts_of(engine, [replace(asked[0], num_answers=2)]) == [expected[0]] * 2
    engine.close()
