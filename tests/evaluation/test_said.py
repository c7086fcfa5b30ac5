"""What people said, as files: whole lines whoever writes, and what is taken back is gone everywhere."""

import json
import multiprocessing
import resource

import pytest

from burnish.data import load_candidates, load_demonstrations, load_preferences, load_scores
from burnish.errors import InputError
from burnish.evaluation import agreement, people
from burnish.evaluation.evaluation import Evaluation
from burnish.evaluation.said import Said, learned_from
from burnish.runs.run import Run


def choice(prompt="p", better="first", **more):
    return {"prompt": prompt, "first": f"{prompt} one", "second": f"{prompt} two", "better": better} | more


def _writes(folder, judge):
    said = Said(folder)
    for number in range(20):
        said.keep(choice(f"{judge} {number} " + "x" * 9000, judge=judge))
        if number % 5 == 4:
            said.take_back(lambda row: row["judge"] == judge)


def test_several_writers_never_tear_a_line(tmp_path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_writes, args=(tmp_path, name)) for name in ("ann", "bob", "eve")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    for kind in ("choices", "preferences"):
        lines = (tmp_path / f"{kind}.jsonl").read_bytes().splitlines()
        assert len(lines) == 3 * 16  # 20 said, 4 taken back
        assert {json.loads(line)["judge"] for line in lines} == {"ann", "bob", "eve"}
    assert len(load_preferences(tmp_path / "preferences.jsonl").records) == 48


def test_a_line_cut_by_a_kill_is_dropped_and_one_without_an_end_is_kept(tmp_path):
    said = Said(tmp_path)
    said.keep(choice("a"))
    path = tmp_path / "choices.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"prompt": "cut')
    said.keep(choice("b"))
    assert [row["prompt"] for row in said.rows()] == ["a", "b"]
    path.write_bytes(path.read_bytes()[:-1])
    said.keep(choice("c"))
    assert [row["prompt"] for row in said.rows()] == ["a", "b", "c"]


@pytest.mark.parametrize("full", ["choices", "preferences"])
def test_what_does_not_fit_on_the_disk_is_not_kept(tmp_path, full):
    """A limit on the size of files cuts a write short, as a disk does that is nearly full."""
    said = Said(tmp_path)
    said.keep(choice("a", note="x" * 300 if full == "choices" else ""))
    (tmp_path / "preferences.jsonl").write_text("\n" * 1000 * (full == "preferences"))
    before = [(tmp_path / f"{kind}.jsonl").read_bytes() for kind in ("choices", "preferences")]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(map(len, before)) + 20, limits[1]))
    try:
        with pytest.raises(OSError, match="No space left"):
            said.keep(choice("b"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [row["prompt"] for row in said.rows()] == ["a"]
    assert (tmp_path / "choices.jsonl").read_bytes() == before[0]


def test_undo_in_the_terminal_leaves_the_choices_of_named_judges_alone(tmp_path):
    start, tuned = (Evaluation(prompts=["p", "q"], texts=[f"{side} 1", f"{side} 2"]) for side in ("start", "tuned"))
    said, answers = Said(tmp_path), iter("1u1q")

    def choose(question):
        answer = next(answers)
        if answer == "u":  # meanwhile, on the page
            said.keep({"prompt": "p", "start": "start 1", "tuned": "tuned 1", "better": "tie", "judge": "ann"})
        return answer

    people.ask(Run(tmp_path), start, tuned, 2, choose)
    assert [row.get("judge") for row in said.rows()] == ["ann", None]


def test_what_is_said_is_read_by_the_stages(tmp_path):
    said = Said(tmp_path, "data-")
    chat = [{"role": "user", "content": "hi"}]
    said.keep(choice("p", "second", judge="ann", strength=2))
    said.keep(choice("q", "tie"))
    said.keep(choice("r", "skip"))
    said.keep(choice("p", "first", again=True))
    said.keep({"prompt": "hi", "messages": chat, "response": "yes", "score": 4.0})
    said.keep({"prompt": "p", "completion": "better"})
    (preferred,) = load_preferences(tmp_path / "data-preferences.jsonl").records
    assert (preferred.prompt, preferred.chosen, preferred.rejected) == ("p", "p two", "p one")
    (scored,) = load_scores(tmp_path / "data-scores.jsonl").records
    assert (scored.prompt.messages, scored.response, scored.score) == (chat, "yes", 4.0)
    (shown,) = load_demonstrations(tmp_path / "data-demonstrations.jsonl").records
    assert (shown.prompt, shown.completion) == ("p", "better")
    assert len(said.rows()) == 6
    assert said.take_back(lambda row: "score" in row)["score"] == 4.0
    assert (tmp_path / "data-scores.jsonl").read_text() == ""
    assert len(said.rows()) == 5
    assert said.take_back(lambda row: row.get("judge") == "nobody") is None


def test_a_tie_teaches_nothing():
    assert learned_from(choice(better="tie")) is None
    assert learned_from(choice(better="first"))[0] == "preferences"


def test_the_verdict_hears_most_judges_and_no_question_twice(tmp_path):
    run = Run(tmp_path)
    sides = [Evaluation(prompts=["p", "q"], texts=[f"{side} {n}" for n in (1, 2)]) for side in ("start", "tuned")]
    said = Said(tmp_path)
    voices = [("p", "tuned", "ann"), ("p", "start", "bob"), ("p", "tuned", "eve"), ("q", "tuned", "ann"),
              ("q", "start", "bob")]  # fmt: skip
    for prompt, better, judge in voices:
        number = 1 if prompt == "p" else 2
        row = {"prompt": prompt, "start": f"start {number}", "tuned": f"tuned {number}", "better": better}
        said.keep(row | {"judge": judge})
    said.keep({"prompt": "p", "start": "start 1", "tuned": "tuned 1", "better": "start", "judge": "ann", "again": True})
    found = people.wins(run, *sides)
    assert (found.wins, found.ties, found.losses) == (1, 1, 0)  # two to one; one to one


# ---------------------------------------------------------------------------------------------------------- agreement


def test_kappa_is_what_is_left_when_chance_is_taken_away():
    # They agree on 3 of 4. Chance: ann says 1 in 2 of 4, bob in 3 of 4: 1/2 * 3/4 + 1/2 * 1/4 = 1/2.
    assert agreement.kappa([1, 1, -1, -1], [1, 1, 1, -1]) == pytest.approx((0.75 - 0.5) / 0.5)
    assert agreement.kappa([1, 1], [1, 1]) is None
    (one,) = agreement.between({"ann": {"a": 1, "b": -1, "x": 0}, "bob": {"b": -1, "a": -1}, "eve": {"z": 1}})
    assert (one["judges"], one["count"], one["rate"]) == (["ann", "bob"], 2, 0.5)


def test_agreement_with_oneself_and_with_scores_counts_what_can_be_compared():
    assert agreement.with_oneself({"a": 1, "b": 0}, {"a": 1, "b": 1, "c": 1})["rate"] == 0.5
    found = agreement.with_scores({"a": 1, "b": -1, "c": 0, "d": 1, "e": 1}, {"a": 0.3, "b": 0.2, "c": 9.0, "d": 0.0})
    assert (found["count"], found["rate"]) == (2, 0.5)  # a tie, equal scores and an unknown score say nothing
    assert agreement.share([]) == {"count": 0, "rate": None, "interval": None}


# -------------------------------------------------------------------------------------------- answers out of a file


def test_answers_to_judge_come_in_several_shapes(tmp_path):
    rows = [
        {"prompt": "p", "answers": ["a", "b"], "scores": [1, 2.5]},
        {"prompt": "p", "chosen": "a", "rejected": "b"},
        {"messages": [{"role": "user", "content": "hi"}], "response": "a"},
    ]
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    first, second, third = load_candidates(path).records
    assert (first.answers, first.scores, second.answers, third.answers) == (["a", "b"], [1.0, 2.5], ["a", "b"], ["a"])
    assert third.prompt.messages == rows[2]["messages"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "p"}, r"answers.jsonl:1: no key 'answers'"),
        ({"prompt": "p", "answers": "a"}, "'answers' is not a list of answers"),
        ({"prompt": "p", "answers": ["a"], "scores": [1, 2]}, "'scores' are not a list of 1 numbers"),
        ({"prompt": "p", "answers": [3]}, "'answers' is of type int, not text"),
    ],
)
def test_a_row_without_answers_is_refused_with_its_place(tmp_path, row, message):
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(InputError, match=message):
        load_candidates(path)
