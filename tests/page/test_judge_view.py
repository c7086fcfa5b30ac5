"""Judging on the page: blind, once, kept, counted; and by several judges."""

import json
from urllib.parse import urlencode

import pytest
from rich.console import Console

from burnish.config import TrainConfig
from burnish.data import load_demonstrations, load_preferences, load_scores
from burnish.evaluation.evaluation import Evaluation
from burnish.runs.run import Run
from burnish.stages.evaluate import write_verdict
from served import served

HOSTILE = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
PAIRS = 12


def finished_run(root, name, tuned="tuned"):
    """With a verdict; the reward prefers the tuned answers."""
    run = Run.new(root, name).begin(TrainConfig(prompts="p.txt", steps=3))
    prompts = [f"{HOSTILE} {n}" for n in range(PAIRS)]
    sides = []
    for side, reward in (("start", 0.0), (tuned, 1.0)):
        measured = {key: [1.0] * PAIRS for key in ("kl", "tokens", "finished", "surprise")}
        measured["reward"] = [reward] * PAIRS
        sides.append(Evaluation(prompts, [f"{side} {HOSTILE} {n}" for n in range(PAIRS)], **measured))
    write_verdict(Console(quiet=True), run, *sides, None, 1)
    run.write("result.json", {})
    return run


@pytest.fixture
def place(tmp_path):
    run = finished_run(tmp_path / "runs", "first")
    finished_run(tmp_path / "runs", "second", "other")
    labelled = tmp_path / "answers.jsonl"
    rows = [
        {"prompt": HOSTILE, "answers": ["one", "two", "three"], "scores": [3, 2, 1]},
        {"prompt": "q", "response": "a"},
    ]
    labelled.write_text("\n".join(map(json.dumps, rows)))
    with served(tmp_path / "runs", labelled=labelled) as page:
        yield page, run, labelled


def question(page, where="/judge/first", **query):
    seen = page.ask(f"/api{where}?{urlencode(query)}").json
    return seen["question"], seen


def choose(page, better, where="/judge/first", **query):
    """Answers the question that is asked next: `better` is a choice, or the beginning of the better answer."""
    asked, seen = question(page, where, **query)
    if better not in ("tie", "skip"):
        better = "left" if asked["left"]["text"].startswith(better) else "right"
    form = query | {"better": better, "pair": asked["pair"], "left": asked["left"]["answer"], "said": seen["said"]}
    answer = page.post(f"/api{where}", form)
    assert answer.json == {"kept": True}
    return asked


def test_a_question_is_blind(place):
    page, *_ = place
    lefts = set()
    for _ in range(60):
        asked, _ = question(page)
        assert set(asked) == {"pair", "prompt", "left", "right"}
        assert set(asked["left"]) == {"answer", "text"}
        lefts.add(asked["left"]["text"].split()[0])
    assert lefts == {"start", "tuned"}  # a fair coin misses one of them in 60 throws once in 2**59


def test_scores_are_not_asked_for_in_the_order_of_the_sides(place):
    page, *_ = place
    firsts = []
    for _ in range(PAIRS):
        for number in range(2):
            asked, seen = question(page, how="score")
            firsts += [asked["text"].split()[0]] if number == 0 else []
            page.post("/api/judge/first", {"answer": asked["answer"], "score": 3, "said": seen["said"]})
    assert set(firsts) == {"start", "tuned"}


def test_a_choice_is_kept_for_the_answer_and_not_for_its_side(place):
    page, run, _ = place
    for _ in range(6):
        choose(page, "tuned", judge="ann")
    rows = run.read_lines("choices.jsonl")
    assert {row["better"] for row in rows} == {"tuned"}
    assert {(row["judge"], row["strength"]) for row in rows} == {("ann", 1)}
    assert len({row["prompt"] for row in rows}) == 6
    learned = load_preferences(run.folder / "preferences.jsonl").records
    assert all(own.chosen.startswith("tuned") and own.rejected.startswith("start") for own in learned)
    verdict = run.read("verdict.json")
    assert (verdict["win_rate_by_people"]["wins"], verdict["win_rate_by_people"]["num_prompts"]) == (6, 6)
    assert "people who compared blindly" in verdict["sentence"]


def test_a_key_pressed_twice_counts_once_and_undo_asks_again(place):
    page, run, _ = place
    asked, seen = question(page)
    form = {"better": "left-much", "pair": asked["pair"], "left": asked["left"]["answer"], "said": seen["said"]}
    assert page.post("/api/judge/first", form).json == {"kept": True}
    assert page.post("/api/judge/first", form).json == {"kept": False}
    (row,) = run.read_lines("choices.jsonl")
    assert (row["strength"], row[row["better"]]) == (2, asked["left"]["text"])
    assert question(page)[0]["pair"] != asked["pair"]
    assert page.post("/api/judge/first", {"undo": "last", "judge": "bob", "said": 0}).json == {"kept": False}  # not his
    assert page.post("/api/judge/first", {"undo": "last", "said": 1}).json == {"kept": True}
    assert run.read_lines("choices.jsonl") == run.read_lines("preferences.jsonl") == []
    assert question(page)[0]["pair"] == asked["pair"]
    assert run.read("verdict.json")["win_rate_by_people"] is None


def test_an_undo_pressed_twice_counts_once(place):
    page, run, _ = place
    for _ in range(2):
        choose(page, "tuned")
    undo = {"undo": "last", "said": 2}
    assert [page.post("/api/judge/first", undo).json["kept"] for _ in range(2)] == [True, False]
    assert len(run.read_lines("choices.jsonl")) == 1
    assert page.post("/api/judge/first", {"undo": "last"}).status == 422


def test_an_undo_takes_back_what_was_said_in_this_view(place):
    page, run, _ = place
    choose(page, "tuned")
    choose(page, "other", against="second")
    assert run.read("verdict.json")["win_rate_by_people"]["wins"] == 1
    assert page.ask("/api/judge/first?how=score").json["can_undo"] is False
    assert page.post("/api/judge/first", {"undo": "last", "said": 2}).json == {"kept": True}
    (left,) = run.read_lines("choices.jsonl")
    assert "first" in left
    assert run.read("verdict.json")["win_rate_by_people"] is None


def test_two_pages_of_one_judge_lose_nothing_of_different_questions(place):
    page, run, _ = place
    asked, seen = question(page)
    form = {"better": "tie", "pair": asked["pair"], "left": asked["left"]["answer"], "said": seen["said"]}
    score, _ = question(page, how="score")
    scored = {"how": "score", "answer": score["answer"], "score": 4, "said": seen["said"]}
    assert page.post("/api/judge/first", form).json == {"kept": True}
    assert [page.post("/api/judge/first", scored).json["kept"] for _ in range(2)] == [True, False]
    assert len(run.read_lines("choices.jsonl")) == 2


def test_skipped_pairs_count_as_done_and_are_not_asked_without_end(place):
    page, *_ = place
    for better in ["skip"] + ["tuned"] * 10:
        choose(page, better, judge="ann")
    asked, seen = question(page, judge="ann")
    assert (seen["made"], seen["total"]) == (11, 13)
    choose(page, "skip", judge="ann")  # one that comes again
    choose(page, "skip", judge="ann")
    asked, seen = question(page, judge="ann")
    assert (asked, seen["made"], seen["total"]) == (None, 13, 13)
    for _ in range(2):
        choose(page, "skip", judge="bob")
    for _ in range(7):
        choose(page, "tuned", judge="bob")
    seen = question(page, judge="bob")[1]
    assert (seen["made"], seen["total"]) == (9, 13)
    choose(page, "skip", judge="bob")  # too few are left for one of them to come again
    seen = question(page, judge="bob")[1]
    assert (seen["made"], seen["total"]) == (10, 12)


def test_a_choice_that_is_kept_is_no_error_and_what_cannot_be_kept_is_told(place, monkeypatch):
    page, run, _ = place

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("burnish.page.judge.count_choices", full)
    choose(page, "tuned")
    assert len(run.read_lines("choices.jsonl")) == 1
    monkeypatch.setattr("burnish.evaluation.said._append", full)
    asked, seen = question(page)
    form = {"better": "tie", "pair": asked["pair"], "left": asked["left"]["answer"], "said": seen["said"]}
    refused = page.post("/api/judge/first", form)
    told = "cannot read or write the files of first: No space left on device"
    assert (refused.status, refused.json) == (422, {"error": told})
    run.path("choices.jsonl").write_text('[1]\n{"prompt": "p"}\n')
    for path in ("/judge/first", "/api/judge/first"):
        damaged = page.ask(path)
        assert (damaged.status, "the files of first are damaged" in damaged.text) == (422, True)


def test_one_pair_in_ten_comes_twice_and_is_learned_from_once(place):
    page, run, _ = place
    seen = [choose(page, "tuned", judge="ann")["pair"] for _ in range(PAIRS + 1)]
    assert question(page, judge="ann")[0] is None
    twice = [pair for pair in set(seen) if seen.count(pair) == 2]
    assert len(twice) == 1
    first, again = (place for place, pair in enumerate(seen) if pair == twice[0])
    assert again - first > 5
    assert len(run.read_lines("preferences.jsonl")) == PAIRS
    assert run.read("verdict.json")["win_rate_by_people"]["wins"] == PAIRS
    shown = page.ask("/api/judge/first?judge=ann").json
    (ann,) = shown["judges"]
    assert (ann["with_oneself"]["count"], ann["with_oneself"]["rate"]) == (1, 1.0)
    assert (ann["with_the_reward"]["count"], ann["with_the_reward"]["rate"]) == (PAIRS, 1.0)
    assert (shown["made"], shown["total"], shown["tally"]) == (PAIRS + 1, PAIRS + 1, {"tuned": PAIRS})


def test_judges_are_asked_the_same_and_their_agreement_is_told(place):
    page, *_ = place
    for better in ("tuned", "tuned", "tie", "skip"):
        choose(page, better, judge="ann")
    for better in ("tuned", "start", "tie", "tuned"):
        choose(page, better, judge="bob")
    (both,) = page.ask("/api/judge/first").json["agreement"]
    assert (both["judges"], both["count"], both["rate"]) == (["ann", "bob"], 3, pytest.approx(2 / 3))
    text = page.ask("/judge/first?judge=ann").text
    assert "67 % of 3" in text


def test_two_runs_are_set_against_each_other(place):
    page, run, _ = place
    asked = choose(page, "other", against="second")
    assert {asked["left"]["text"].split()[0], asked["right"]["text"].split()[0]} == {"tuned", "other"}
    (row,) = run.read_lines("choices.jsonl")
    assert (row["from"], row["better"]) == (["first", "second"], "second")
    assert page.ask("/api/judge/first?against=second").json["tally"] == {"second": 1}
    assert run.read("verdict.json")["win_rate_by_people"] is None
    assert page.ask("/api/judge/first?against=none").status == 404


def test_several_answers_of_one_prompt_are_judged(place):
    page, run, _ = place
    for step, response in ((1, "a"), (1, "b"), (2, "c"), (2, "c"), (3, "d"), (3, "e")):
        row = {"step": step, "prompt": "p", "response": response, "score": float(ord(response))}
        run.append("samples.jsonl", row)
    choose(page, "d", against="/answers")  # the newest first, and nothing is to choose between c and c
    choose(page, "b", against="/answers")
    shown = page.ask("/api/judge/first?against=/answers").json
    assert (shown["question"], shown["judges"][0]["with_the_reward"]["rate"]) == (None, 0.5)


def test_a_file_is_labelled_before_there_is_any_run(place):
    page, _, labelled = place
    for better in ("one", "three"):
        choose(page, better, where="/judge", judge="ann")
    learned = load_preferences(labelled.with_name("answers-preferences.jsonl")).records
    assert [(own.chosen, own.rejected) for own in learned] == [("one", "two"), ("three", "two")]
    shown = page.ask("/api/judge?judge=ann").json
    assert (shown["question"], shown["judges"][0]["with_the_reward"]["rate"]) == (None, 0.5)
    assert "All 2 are judged" in page.ask("/judge?judge=ann").text


def test_scores_and_better_answers_are_kept_for_the_stages(place):
    page, _, labelled = place
    said = {}
    for score in (4, "skip", 2.5, 1):
        asked, seen = question(page, "/judge", how="score")
        said[asked["text"]] = score
        form = {"how": "score", "answer": asked["answer"], "score": score, "said": seen["said"]}
        assert page.post("/api/judge", form).json == {"kept": True}
    assert question(page, "/judge", how="score")[0] is None
    scores = load_scores(labelled.with_name("answers-scores.jsonl")).records
    assert set(said) == {"one", "two", "three", "a"}
    assert {own.response: own.score for own in scores} == {text: own for text, own in said.items() if own != "skip"}
    _, seen = question(page, "/judge")
    form = {"completion": " best\r\nof all ", "prompt": seen["question_key"], "said": seen["said"]}
    assert page.post("/api/judge", form).json == {"kept": True}
    (shown,) = load_demonstrations(labelled.with_name("answers-demonstrations.jsonl")).records
    assert (shown.prompt, shown.completion) == (HOSTILE, "best\nof all")


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"better": "left", "pair": "none", "left": "none"}, "not among those to be judged any more"),
        ({"better": "up"}, "a choice is one of left-much, left, tie"),
        ({"score": 9, "answer": "none"}, "not among those to be judged any more"),
        ({"completion": "x", "prompt": "none"}, "this prompt is not among those"),
        ({"completion": "  "}, "a better answer has 1 to 100000 characters, this one has 0"),
    ],
)
def test_what_cannot_be_kept_is_refused(place, form, message):
    page, run, _ = place
    asked, seen = question(page)
    known = {"pair": asked["pair"], "left": asked["left"]["answer"], "prompt": seen["question_key"], "said": 0}
    answer = page.post("/api/judge/first", known | form)
    assert (answer.status, message in answer.json["error"]) == (422, True)
    assert not run.path("choices.jsonl").exists()


def test_judging_needs_the_token_and_texts_stay_texts(place):
    page, run, _ = place
    assert page.ask("/judge/first", "POST", b"undo=last").status == 401
    for path in ("/judge/first", "/judge/first?how=score&judge=" + "%3Cb%3E", "/judge/first?against=second", "/judge"):
        answer = page.ask(path)
        assert answer.status == 200
        assert answer.text.count("<script") == 1
        assert "<img" not in answer.text
        assert "<b>" not in answer.text
        assert "disabled" in answer.text  # without the token nothing can be pressed
    assert not run.path("choices.jsonl").exists()


def test_a_form_leads_back_to_the_next_question(place):
    page, *_ = place
    body = b"undo=last&judge=ann&how=choose&against=second&said=0"
    answer = page.ask("/judge/first", "POST", body, **page.bearer)
    assert (answer.status, answer.headers["location"]) == (303, "/judge/first?against=second&how=choose&judge=ann")


def test_a_chat_stays_a_chat_in_verdict_and_preferences(tmp_path):
    from burnish.data import Prompt

    run = Run.new(tmp_path, "chat").begin(TrainConfig(prompts="p.txt"))
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    measured = {key: [1.0] for key in ("reward", "kl", "tokens", "finished", "surprise")}
    sides = [Evaluation([Prompt("hi", messages=chat)], [text], **measured) for text in ("tuned a", "b")]
    write_verdict(Console(quiet=True), run, *sides, None, 1)
    run.write("result.json", {})
    with served(tmp_path) as page:
        choose(page, "tuned", where="/judge/chat")
        choose_again = run.read("verdict.json")
    assert run.read_lines("preferences.jsonl")[0]["prompt"] == chat
    assert choose_again["answers"][0]["messages"] == chat
