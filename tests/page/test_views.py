"""What the views show of run folders, and that the texts in them do nothing but stand there."""

import json
import os
import re
from pathlib import Path

import pytest
import yaml

from burnish.config import SFTConfig, TrainConfig
from burnish.drawing.health import LOOKED_AT, RANGES, alarm_of
from burnish.errors import InputError
from burnish.page import overview
from burnish.page.app import VIEWS, _in_words
from burnish.page.kept_responses import KeptResponses
from burnish.page.library import Library
from burnish.page.rollouts import histogram
from burnish.page.same_prompt import word_diff
from burnish.page.view import Asked, Looks, address, span, sparkline
from burnish.ppo.meanings import METRICS
from burnish.runs.journal import Journal
from burnish.runs.run import Run
from served import served

HOSTILE = [
    "<script>document.title = 'owned'</script>",
    "<img src=x onerror=\"document.title = 'owned'\">",
    "</span></section></main><h1>gone</h1>",
    "\" onmouseover=\"document.title='owned'",
    "javascript:document.title='owned'",
    "{{ 7 * 7 }} {% raw %}",
    "\u202ereversed\x00\x1b[31m",
]
NUMBERS = ("logprob_policy", "logprob_ref", "exact_kl", "kl", "reward", "value", "td_error", "advantage", "return")
NAME = "<b>x</b> 'n' & \"q\" %2e #1 ?a=b"


def sample(step, prompt, response, score, **more):
    tokens = [response, *HOSTILE]
    numbers = [(-1) ** place * 0.1 * place for place in range(len(tokens))]
    heading = {"step": step, "prompt": prompt, "response": response, "score": score}
    return heading | more | {"tokens": tokens} | {name: list(numbers) for name in NUMBERS}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A run whose every text is hostile, its own name and settings among them; one of another stage; a plain one."""
    folder = tmp_path_factory.mktemp("views") / "runs"
    settings = {"prompts": HOSTILE[0], "system_prompt": "\n".join(HOSTILE[:6]), "chat_template": True, "steps": 12}
    run = Run.new(folder, NAME).begin(TrainConfig(**settings))
    for step in range(1, 13):
        numbers = {name: 0.1 * step for name in METRICS if not name.startswith("reward_")}
        parts = {HOSTILE[0]: 0.1 * step, "model": -0.2}
        run.log(numbers | {"step": step, "reward": 0.1 * step, "kl": 3.0 * step, "seconds": 2.0, "reward_parts": parts})
        for number in range(2):
            own = {"reward_parts": {HOSTILE[0]: 1.0, "model": 0.5}}
            run.append(
                "samples.jsonl",
                sample(step, HOSTILE[step % 2], f"{HOSTILE[1]} {step} {number}", step + number / 2, **own),
            )
        run.log_probes(step, [HOSTILE[2]], [f"{HOSTILE[0]} word{step} same"])
    journal = Journal(run)
    journal.begin(0)
    journal.note("warning", HOSTILE[0])
    journal.end("failed", HOSTILE[1])
    run.path(".lock").write_text("process 0 since then")
    sft = Run.new(folder, "sft").begin(SFTConfig(demonstrations="d.jsonl"))
    for update in range(1, 9):
        sft.log({"update": update, "loss": 2.0 - 0.1 * update, "learning_rate": 0.1})
    sft.write("result.json", {"loss_before": 2.0, "loss_after": 1.2, "updates": 8})
    plain = Run.new(folder, "plain").begin(TrainConfig(prompts="p.txt", steps=12, kl_coef=0.5))
    plain.log({"step": 1, "reward": 0.5, "kl": 1.0, "seconds": 1.0})
    side = {"reward": {"mean": 0.1, "half_interval_95": 0.05}, "distinct_1": 0.5, "distinct_2": 0.9}
    wins = {"rate": 0.8, "interval": [0.6, 0.9], "num_prompts": 20}
    more = {"win_rate_by_second_reward": None, "win_rate_by_people": None, "best_of_n": None}
    verdict = {"outcome": "worth it", "sentence": f"Worth it: {HOSTILE[0]}", "win_rate": wins, "start": side}
    plain.write("verdict.json", verdict | more | {"tuned": side})
    plain.write("result.json", {"seconds": 3, "peak_memory_gb": 1.5, "memory": {"base": 500}})
    return folder


@pytest.fixture(scope="module")
def page(root):
    with served(root) as found:
        yield found


def seen(root, view, query=None, run=NAME):
    own = next(v for v in VIEWS if v.name == view)
    return own.data(Asked(Library(root), {"run": run}, query or {}))


def addresses(page):
    from burnish.page.view import quoted

    names = [quoted(name) for name in page.library.runs()]
    yield "/"
    yield "/?text=%3Cscript%3E&sort=reward"
    yield "/start"
    yield "/compare?" + "&".join(f"run={name.replace('&', '%26').replace('/', '%2F')}" for name in names)
    for view in VIEWS:
        if view.is_of_a_run:
            yield from (view.address.replace("{run:path}", name) for name in names)


# ----------------------------------------------------------------------------------------- hostile and damaged files


@pytest.fixture(scope="module")
def looks():
    return Looks(VIEWS)


DAMAGES = {
    "config.yaml": ["", "[", "- a", "stage: nonsense", "steps: [1]"],
    "metrics.jsonl": ["[1]\n", '{"step": "x", "reward": 1}\n', '{"reward": 1, "reward_parts": 3}\n', "nonsense\n{}\n"],
    "samples.jsonl": ["[]\n", "{}\n", '{"step": 1, "prompt": 2, "response": 3, "score": 1, "tokens": [4]}\n'],
    "probes.jsonl": ["[]\n", "{}\n"],
    "verdict.json": ["{}", "[]", "nonsense", '{"sentence": 1, "outcome": 2, "start": 3, "tuned": 4}'],
    "result.json": ["[]", "nonsense"],
    "journal.jsonl": ["[]\n", '{"event": []}\n', '{"event": "failed", "text": 3}\n'],
    "credit.json": ["{}", "[]"],
    "now.json": ["[]", "{}", "[1]", '{"step": "x", "steps": [], "phase": 1, "since": "y"}'],
    ".lock": ["process", "\x00"],
}


@pytest.mark.parametrize(("file", "content"), [(file, own) for file, all_of in DAMAGES.items() for own in all_of])
def test_a_damaged_run_is_told_and_the_others_are_still_seen(tmp_path, looks, file, content):
    Run.new(tmp_path, "whole").begin(TrainConfig(prompts="p.txt")).log({"step": 1, "reward": 0.5})
    hurt = Run.new(tmp_path, "hurt").begin(TrainConfig(prompts="p.txt"))
    hurt.log({"step": 1, "reward": 0.5, "seconds": 1.0})
    hurt.append("samples.jsonl", sample(1, "p", "r", 1.0))
    (hurt.folder / file).write_text(content)
    library, told = Library(tmp_path), {}
    for view in VIEWS:
        asked = Asked(library, {"run": "hurt"}, {"run": ["whole", "hurt"]})
        try:
            with _in_words(asked):
                data = view.data(asked)
        except InputError as error:
            told[view.name] = str(error)
        else:
            looks.render(f"{view.name}.html", data, title="", version="", may_write=False)
            json.loads(looks.json(data))
    assert "overview" not in told
    assert all("hurt" in sentence or "a run" in sentence for sentence in told.values())
    rows = {row["run"]: row for row in overview.data(Asked(library, {}, {}))["runs"]}
    assert rows["whole"]["last"] == 0.5
    assert set(rows) == {"whole", "hurt"}


@pytest.mark.parametrize("file", [".lock", "result.json", "config.yaml", "journal.jsonl", "verdict.json"])
def test_a_run_with_a_link_in_it_is_told_and_the_others_are_still_seen(tmp_path, file):
    Run.new(tmp_path, "whole").begin(TrainConfig(prompts="p.txt"))
    hurt = Run.new(tmp_path, "hurt").begin(TrainConfig(prompts="p.txt"))
    (tmp_path / "secret").write_text("stage: ppo\nsystem_prompt: the-secret\n")
    (hurt.folder / file).unlink(missing_ok=True)
    os.symlink(tmp_path / "secret", hurt.folder / file)
    with served(tmp_path) as page:
        for view in ("run", "rollouts", "credit", "same-prompt"):
            answer = page.ask(f"/api/{view}/hurt")
            assert "the-secret" not in answer.text
            assert answer.status in (200, 404, 422)
        assert page.ask("/api/").json["total"] >= 1


# -------------------------------------------------------------------------------------------------- hostile texts


def test_no_text_becomes_markup(page):
    for path in addresses(page):
        answer = page.ask(path)
        assert answer.status == 200, (path, answer.text[-300:])
        text = answer.text
        assert text.count("<script") == 1, path  # ours
        assert "<img" not in text, path
        assert not re.search(r"<b>x</b>", text), path
        assert text.count("<h1>") == 1, path
        tags = re.findall(r"<[a-z][^<>]*>", text)
        assert not [tag for tag in tags if re.search(r"\s(on\w+|style)\s*=", re.sub(r'"[^"]*"', '""', tag))], path
        assert not re.search(r"""(href|src|action)=["']?\s*(javascript|data|http|//)""", text), path
        assert "\u202e" not in text
        assert "\x00" not in text
        assert "\x1b" not in text


def test_texts_are_never_templates(page):
    from burnish.page.view import quoted

    assert "{{ 7 * 7 }} {% raw %}" in page.ask(f"/credit/{quoted(NAME)}").text


def test_secrets_are_hidden_in_html_and_json(root, monkeypatch):
    monkeypatch.setenv("JUDGE_API_KEY", "reversed\x00\x1b"[:8] + "x")
    monkeypatch.setenv("OTHER_TOKEN", "document.title")
    with served(root) as page:
        for path in addresses(page):
            for answer in (page.ask(path), page.ask(f"/api{path}")):
                assert "document.title" not in answer.text, path
                assert answer.status == 200


def test_nothing_in_a_mapping_of_settings_gives_a_secret_away(tmp_path, monkeypatch):
    monkeypatch.setenv("HOW_WE_CALL_IT", "hidden-word")
    part = {"kind": "http", "url": "https://x/?k=hidden-word", "token_env": "HOW_WE_CALL_IT", "note": ["a\x1b\u202eb"]}
    config = {"stage": "ppo", "prompts": "p.txt", "reward": [part], "rollout": {"url": "hidden-word"}}
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "config.yaml").write_text(yaml.safe_dump(config))
    with served(tmp_path / "runs") as page:
        for answer in (page.ask("/run/one"), page.ask("/api/run/one")):
            assert answer.status == 200
            assert "hidden-word" not in answer.text
            assert "[HOW_WE_CALL_IT]" in answer.text
        assert not {"\x1b", "\u202e"} & set(page.ask("/run/one").text)


def test_what_stands_in_backticks_is_code_and_stays_escaped(looks):
    text = looks.render("error.html", {"error": "see `a <b>` and `"}, title="", version="", may_write=False)
    assert "see <code>a &lt;b&gt;</code> and `" in text


def test_a_tab_is_shown(looks):
    assert "a\tb" in looks.render("error.html", {"error": "a\tb\x07"}, title="", version="", may_write=False)


def test_json_is_valid_and_has_what_the_docs_say(page):
    """Every key is explained, and the docs name no other."""
    docs = (Path(__file__).parents[2] / "docs" / "page.md").read_text()
    documented = set(re.findall(r"`(\w+)`", docs))
    for path in addresses(page):
        answer = page.ask(f"/api{path}")
        assert answer.headers["content-type"] == "application/json"
        unexplained = set(answer.json) - documented
        assert not unexplained, (path, unexplained)
    tables = re.findall(r"^\| (`[^|]*) \|", docs.split("## Everything as JSON")[1], re.MULTILINE)
    named = {key for cell in tables for key in re.findall(r"`(\w+)`", cell)}
    given = {key for path in addresses(page) for key in page.ask(f"/api{path}").json}
    given |= set(page.ask("/api/").json["runs"][0])
    assert named <= given, named - given


# ------------------------------------------------------------------------------------------------------ the overview


def test_runs_are_listed_with_their_states(root):
    rows = {row["run"]: row for row in seen(root, "overview")["runs"]}
    assert {name: row["state"] for name, row in rows.items()} == {
        NAME: "failed",
        "sft": "finished",
        "plain": "finished",
    }
    assert rows[NAME]["why"] == HOSTILE[1]
    assert (rows[NAME]["step"], rows[NAME]["steps"], rows[NAME]["curve"]) == (12, 12, "reward")
    assert (rows["sft"]["step"], rows["sft"]["curve"], rows["sft"]["outcome"]) == (8, "loss", "loss 2.00 to 1.20")
    assert rows["plain"]["outcome"] == "worth it: reward 0.10 to 0.10"


def test_runs_are_found_and_sorted(root):
    def names(**query):
        return [row["run"] for row in seen(root, "overview", {k: [v] for k, v in query.items()})["runs"]]

    assert names(state="failed") == [NAME]
    assert names(stage="sft") == ["sft"]
    assert names(text="WORTH plain") == ["plain"]
    assert names(text="nothing like it") == []
    assert names(sort="name") == sorted([NAME, "plain", "sft"])
    assert names(sort="reward")[:2] == [NAME, "plain"]
    assert names(sort="nonsense") == names(sort="newest")


def test_a_run_that_appears_later_is_found_and_one_that_goes_is_gone(tmp_path):
    library = Library(tmp_path)
    assert library.runs() == {}
    run = Run.new(tmp_path, "later").begin(TrainConfig(prompts="p.txt"))
    library._looked = -10.0
    assert list(library.runs()) == ["later"]
    first = library.version("later")
    run.log({"step": 1, "reward": 1.0})
    library._versions.clear()
    assert library.version("later") != first


def test_a_folder_that_is_a_run_shows_that_run(root):
    assert list(Library(root / "plain").runs()) == ["plain"]


# ------------------------------------------------------------------------------------------------------------ a run


def test_a_run_says_how_it_stands(root):
    shown = seen(root, "one_run")
    # rewards 0.1 ... 1.2: the first five have the mean 0.3, the last five 1.0
    expected = "After step 12 of 12: reward 0.3 to 1 (means of the first and the last 5 steps), KL 36 nats."
    assert shown["sentence"] == f"{expected} No verdict: it did not come to its end."
    assert seen(root, "one_run", run="plain")["sentence"] == f"Worth it: {HOSTILE[0]}"
    # losses 1.9 ... 1.2: the first four have the mean 1.75, the last four 1.35
    of_sft = "After update 8: loss 1.75 to 1.35 (means of the first and the last 4 updates)."
    assert seen(root, "one_run", run="sft")["sentence"] == f"{of_sft} On held-out data: loss 2.00 to 1.20."
    assert shown["resume"].startswith("burnish resume '")
    assert seen(root, "one_run", run="plain")["resume"] is None
    assert [event["event"] for event in shown["log"]] == ["begun", "warning", "failed"]
    assert seen(root, "one_run", run="plain")["memory"]["peak_mb"] == 1500


def test_a_curve_outside_its_range_says_cause_and_remedy(root):
    charts = {own["metric"]: own for own in seen(root, "one_run")["charts"]}
    assert charts["kl"]["alarm"] == RANGES["kl"].above
    assert charts["kl"]["band"] == (0.0, 15.0)
    assert charts["reward"]["alarm"] is None
    assert [line["name"] for line in charts["reward"]["lines"]] == ["reward", HOSTILE[0], "model"]
    assert "KL to the reference" in seen(root, "one_run")["alarms"]


def test_an_alarm_looks_at_the_median_of_the_last_steps():
    steps = list(range(1, 21))
    assert alarm_of("kl", steps, [1.0] * 18 + [99.0] * 2) is None  # two of five are no median
    assert alarm_of("kl", steps, [1.0] * 17 + [99.0] * 3) == RANGES["kl"].above
    assert alarm_of("kl", steps[: LOOKED_AT - 1], [99.0] * (LOOKED_AT - 1)) is None  # it has to settle first
    assert alarm_of("explained_variance", steps, [-0.5] * 20) == RANGES["explained_variance"].below
    assert alarm_of("explained_variance", steps[:9], [-0.5] * 9) is None
    assert alarm_of("unheard_of", steps, [1.0] * 20) is None
    for name, known in RANGES.items():
        assert name in METRICS
        assert known.below or known.above
        if known.healthy:
            assert known.alarm[0] <= known.healthy[0] < known.healthy[1] <= known.alarm[1]


# --------------------------------------------------------------------------------------------------- the responses


def test_responses_to_one_prompt_stand_side_by_side(root):
    shown = seen(root, "rollouts")
    assert (shown["kept"], shown["found"], shown["groups_found"]) == (24, 24, 12)
    newest = shown["groups"][0]
    assert newest["step"] == 12
    assert [own["response"] for own in newest["responses"]] == [f"{HOSTILE[1]} 12 0", f"{HOSTILE[1]} 12 1"]
    assert newest["responses"][0]["reward_parts"] == {HOSTILE[0]: 1.0, "model": 0.5}


def test_responses_are_found_by_step_reward_words_and_prompt(root):
    def found(**query):
        shown = seen(root, "rollouts", {k: [v] for k, v in query.items()})
        return [(own["step"], n) for own in shown["groups"] for n, r in enumerate(own["responses"]) if r["is_chosen"]]

    assert found(step="3") == [(3, 0), (3, 1)]
    assert found(low="12", high="12.4") == [(12, 0)]
    assert found(text="ONERROR 7") == [(7, 0), (7, 1)]
    assert found(text="no such words") == []
    assert len(found(prompt="0")) == 12
    assert found(sort="worst")[0] == (1, 0)
    assert found(sort="best")[0] == (12, 0)
    assert found(step="x", low="nan", page="-1") == found()


def test_a_histogram_counts_every_score_once():
    bins = histogram([0.0, 0.0, 0.5, 1.0])
    assert len(bins) == 24
    assert (bins[0]["count"], bins[12]["count"], bins[-1]["count"]) == (2, 1, 1)
    assert sum(own["count"] for own in bins) == 4
    assert [own["count"] for own in histogram([3.0, 3.0])] == [2]
    assert histogram([]) == []
    chosen = histogram([0.0, 1.0], low=bins[0]["low"], high=bins[0]["high"])
    assert [own["is_chosen"] for own in chosen] == [True] + [False] * 23


def test_a_response_that_was_added_is_there_at_once_without_reading_the_others(tmp_path, monkeypatch):
    run = Run.new(tmp_path, "run").begin(TrainConfig(prompts="p.txt"))
    for step in range(1, 50):
        run.append("samples.jsonl", sample(step, "p", "r", 1.0))
    library = Library(tmp_path)
    assert library.growing("run", KeptResponses) is library.growing("run", KeptResponses)
    view = next(v for v in VIEWS if v.name == "rollouts")
    view.data(Asked(library, {"run": "run"}, {"step": ["1"]}))
    run.append("samples.jsonl", sample(50, "p", "new", [0.5, 0.25]))
    parsed = []
    plainly = json.loads
    monkeypatch.setattr("burnish.page.kept_responses.json.loads", lambda text: parsed.append(text) or plainly(text))
    shown = view.data(Asked(library, {"run": "run"}, {"step": ["50"]}))
    assert shown["groups"][0]["responses"][0]["score"] == 0.75  # one number per token: their sum
    assert len(parsed) == 2  # its heading, once to know of it and once to show it
    assert all(b"tokens" not in text for text in parsed)


def test_the_same_prompt_is_followed_through_the_steps(root):
    shown = seen(root, "same_prompt")
    assert [own["headline"] for own in shown["prompts"]] == [HOSTILE[2], HOSTILE[1], HOSTILE[0]]
    assert [version["step"] for version in shown["versions"]] == list(range(1, 13))
    assert shown["versions"][2]["diff"] == [
        ("same", f"{HOSTILE[0]} "), ("gone", "word1"), ("added", "word3"), ("same", " same"),
    ]  # fmt: skip
    sampled = seen(root, "same_prompt", {"prompt": ["1"]})
    assert [version["score"] for version in sampled["versions"]][:2] == [1.0, 1.5]
    assert seen(root, "same_prompt", {"prompt": ["99"]})["prompt_number"] == 0


def test_a_word_diff_gives_both_texts_back():
    pairs = [("", ""), ("a b c", "a c d"), ("one\ntwo", "two\n\none"), ("x " * 3000, "y " * 3000), ("don't", "do not")]
    for start, now in pairs:
        diff = word_diff(start, now)
        assert "".join(text for kind, text in diff if kind != "added") == start
        assert "".join(text for kind, text in diff if kind != "gone") == now


# -------------------------------------------------------------------------------------------------------- the credit


def test_every_token_has_its_numbers_and_its_colour(root):
    shown = seen(root, "credit", {"number": ["4"], "by": ["td_error"]})
    assert (shown["response"]["step"], shown["of_step"]) == (3, [4, 5])
    assert list(shown["shades"]) == ["advantage", "td_error", "value", "kl"]
    assert set(shown["columns"]) == set(NUMBERS)
    tokens = shown["tokens"]
    assert [round(token["shown"], 3) for token in tokens[:4]] == [0.0, -0.1, 0.2, -0.3]
    # the largest is 0.7: sqrt(0.1 / 0.7) = 0.378
    assert [tokens[place]["strength"] for place in (0, 1, 7)] == [0, 4, 10]
    assert tokens[3]["numbers"]["return"] == pytest.approx(-0.3)


def test_an_advantage_is_shown_less_what_the_update_subtracts(root):
    shown = seen(root, "credit", {"number": ["4"], "by": ["advantage"]})
    assert shown["tokens"][0]["shown"] == pytest.approx(-0.3)  # advantage_mean of step 3
    assert shown["tokens"][0]["numbers"]["advantage"] == 0.0


def test_without_a_value_model_kl_comes_first_and_a_ratio_is_shown_where_there_is_one(tmp_path):
    run = Run.new(tmp_path, "run").begin(TrainConfig(prompts="p.txt"))
    row = sample(1, "p", "r", 1.0)
    for name in ("value", "td_error", "return"):
        del row[name]
    run.append("samples.jsonl", row | {"ratio": [2.0] * 8, "clipped": [True] * 8})
    shown = seen(tmp_path, "credit", run="run")
    assert list(shown["shades"]) == ["kl", "advantage", "ratio"]
    assert shown["by"] == "kl"
    assert "There is no value model" in shown["trust"]
    assert seen(tmp_path, "credit", {"by": ["ratio"]}, "run")["tokens"][0]["shown"] == pytest.approx(0.6931, abs=1e-4)
    with served(tmp_path) as page:
        assert 'class="token s10 clipped"' in page.ask("/credit/run?by=ratio").text
        assert page.ask("/api/credit/run?number=99").status == 422


def test_how_far_credit_may_be_trusted_is_the_measured_number(root, tmp_path):
    assert "explains" in seen(root, "credit")["trust"]
    run = Run.new(tmp_path, "run").begin(TrainConfig(prompts="p.txt"))
    agreement = {"correlation": 0.52, "low": 0.4, "high": 0.6, "best": 0.9, "slope": 1.0, "count": 64}
    run.write("credit.json", {"agreements": {"advantage": agreement}, "responses": 16, "continuations": 16})
    shown = seen(tmp_path, "credit", run="run")
    assert "advantages 0.52 (0.40 to 0.60), to be trusted on the whole" in shown["trust"]
    assert shown["response"] is None


# ------------------------------------------------------------------------------------------------------- the comparison


def test_runs_are_compared_by_curves_settings_and_results(root):
    shown = seen(root, "compare", {"run": [NAME, "plain", "plain"]})
    assert [row["run"] for row in shown["runs"]] == [NAME, "plain"]
    differing = {row["key"]: row["values"] for row in shown["settings"]}
    assert differing["kl_coef"] == [TrainConfig(prompts="p").kl_coef, 0.5]
    assert "batch_size" not in differing
    assert "run_name" not in differing
    lines = next(own for own in shown["charts"] if own["metric"] == "kl")["lines"]
    assert [(line["name"], len(line["points"])) for line in lines] == [(NAME, 12), ("plain", 1)]
    assert next(row for row in shown["results"] if row["key"] == "held-out reward")["values"] == [None, 0.1]
    assert seen(root, "compare")["runs"] == []


def test_a_run_that_is_not_there_cannot_be_compared(page):
    assert page.ask("/api/compare?run=plain&run=../../etc").status == 404


# --------------------------------------------------------------------------------------------------------- the words


def test_times_and_addresses_are_written_as_one_reads_them():
    assert [span(s) for s in (0.4, 65, 600, 5400, 7200, 200_000)] == [
        "0 s",
        "65 s",
        "10 min",
        "1 h 30 min",
        "2 h 0 min",
        "2 d 7 h",
    ]
    assert address("/x", a=None, b="", c="d e", f=0) == "/x?c=d+e&f=0"
    assert sparkline([(1, 0.0), (2, 1.0)]) == "M2.0,25.0 L118.0,3.0"
    assert sparkline([(1, 0.0)]) == ""
