"""The report: self-contained, whatever the texts hold, and readable in a real browser at any width."""

import html
import io
import json
import math
import re

import pytest
from rich.console import Console

from burnish import InputError
from burnish.config import RewardModelConfig, SFTConfig
from burnish.drawing.charts import Chart, Line, nice_ticks, short
from burnish.ppo.meanings import METRICS
from burnish.runs.run import PIPELINE, Run
from burnish.show.page import report_page
from burnish.show.samples import spread_samples
from burnish.show.terminal import answers_table
from burnish.stages.report import write_report
from burnish.text import headline, without_secrets
from tiny import tiny_config

HOSTILE = [
    "<script>document.title = 'owned'</script>",
    "<img src=x onerror=\"document.title = 'owned'\">",
    "</span></section></main><h1>gone</h1>",
    "\" onmouseover=\"document.title='owned'",
    "{{ 7 * 7 }} {% raw %}",
    "\u202ereversed\x00\x1b[31m",
    "a" * 400,
]


@pytest.fixture
def run(tmp_path):
    """A finished run whose every text is hostile."""
    made = Run.new(tmp_path, "run").begin(tiny_config(steps=3))
    for step in range(1, 4):
        row = {name: 0.1 * step for name in METRICS if not name.startswith("seconds_")}
        made.log(row | {"step": step, "reward_parts": {"<b>rule</b>": 0.1 * step, "model": -0.2 * step}})
        tokens = HOSTILE
        numbers = [(-1) ** t * 0.1 * t for t in range(len(tokens))]
        keys = ("logprob_policy", "logprob_ref", "kl", "reward", "value", "td_error", "advantage", "return")
        sample = {
            "step": step,
            "prompt": "\n".join(HOSTILE),
            "response": "".join(tokens),
            "score": 0.5,
            "tokens": tokens,
        }
        made.append("samples.jsonl", sample | dict.fromkeys(keys, numbers))
        made.log_probes(step - 1, [HOSTILE[0]], [HOSTILE[1]])
    side = {"reward": {"mean": 0.1, "half_interval_95": 0.05}, "distinct_1": 0.5, "distinct_2": 0.9}
    wins = {"rate": 0.8, "interval": [0.6, 0.9], "num_prompts": 20}
    made.write(
        "verdict.json",
        {
            "outcome": "worth it",
            "sentence": f"Worth it: {HOSTILE[0]}",
            "win_rate": wins,
            "win_rate_by_second_reward": None,
            "win_rate_by_people": wins,
            "best_of_n": {"n": 4, "reward": 0.2, "tuned_beats_it": 0.5},
            "start": side,
            "tuned": side,
            "answers": [{"prompt": t, "start": t, "tuned": t} for t in HOSTILE],
        },
    )
    return made


def test_page_is_one_file_without_scripts(run):
    page = report_page(run)
    assert "<script" not in page
    assert not re.search(r"\son\w+\s*=\s*[\"']", page.replace("&#34;", ""))
    assert not re.search(r"(src|href)\s*=|url\(|@import", page.replace("&lt;img src=x", ""))
    assert "Content-Security-Policy" in page
    assert "\u202e" not in page
    assert "\x00" not in page
    assert "{{ 7 * 7 }}" in page  # text is never a template


def test_every_token_shows_its_numbers(run):
    page = report_page(run)
    assert page.count('tabindex="0"') == 3 * len(HOSTILE)
    for label in ("log-probability", "KL charged", "TD error", "advantage", "return", "value"):
        assert page.count(f"<i>{label}</i>") == 3 * len(HOSTILE)


def test_who_won_stands_there_in_plain_numbers_and_older_verdicts_can_be_read(run):
    def shown(text):
        return re.sub(r"<[^>]+>", " ", text)

    assert "better by the reward (20)    80% (60% to 90%)" in shown(report_page(run))
    assert "start's best of 4  0.200  beaten on 50%" in shown(report_page(run)).replace("&#39;", "'")
    verdict = run.read("verdict.json")
    tally = {"wins": 9, "ties": 36, "losses": 0, "p_value": 0.004, "change": 0.2, "half_change_95": 0.12}
    share = {"rate": 1.0, "interval": [0.66, 1.0], "num_prompts": 45}
    run.write("verdict.json", verdict | {"outcome": "too few to tell", "win_rate": share | tally})
    page = report_page(run)
    assert "better by the reward (36 equal)  0  9 (66% to 100%)" in shown(page)
    assert "by how much on average    +0.200 ± 0.120" in shown(page)
    assert '<span class="badge too-few-to-tell">too few to tell</span>' in page
    assert ".badge.too-few-to-tell {" in page


def test_a_pipelines_page_has_the_results_of_the_stages_before(run):
    assert "The stages before" not in report_page(run)
    pipeline = run.folder.parent
    (pipeline / PIPELINE).write_text("ppo: {}\n")
    assert "The stages before" not in report_page(run)  # it may begin with PPO
    Run.new(pipeline, "sft").begin(SFTConfig(demonstrations="-"))
    Run.new(pipeline, "reward").begin(RewardModelConfig(preferences="-"))
    assert "The stages before" not in report_page(run)  # begun is not finished
    Run(pipeline / "sft").write("result.json", {"loss_before": 2.3456, "loss_after": 1.2})
    pairs = {"num_pairs": 48, "accuracy": 0.68, "accuracy_interval": [0.51, 0.81]}
    scores = {"num_scores": 30, "score_correlation": 0.5, "score_correlation_interval": [0.2, 0.7]}
    report = pairs | {"longer_wins": 0.615, "bag_of_words": 0.625}
    Run(pipeline / "reward").write("result.json", scores | {"length_baseline": 0.1, "report": report})
    page = report_page(run)
    assert "<td>sft</td><td>loss (nats per token)</td><td>2.346 before, 1.200 after</td>" in page
    assert "68% (51% to 81%); choosing the longer answer 62%, a bag-of-words classifier 62%" in page
    assert "<td>correlation with 30 human scores</td><td>0.50 (0.20 to 0.70); length alone 0.10</td>" in page
    Run(pipeline / "sft").write("result.json", {"loss_before": None, "loss_after": None})  # nothing was held out
    assert "<td>sft</td>" not in report_page(run)


def test_the_page_says_what_machine_it_ran_on(run):
    run.write("result.json", {"machine": {"cores": 2, "memory_gib": 24}, "seconds": 60})
    assert "2 cores, 24 GiB" in report_page(run)
    run.write("result.json", {"seconds": 60})  # of an older version
    assert "GiB" not in report_page(run)


def test_the_most_likely_answers_stand_side_by_side(run):
    """Three columns where there are three; a run of an older version shows its sampled ones."""
    assert "Sampled answers to held-out prompts" in report_page(run)
    row = {"prompt": HOSTILE[0], "base": "said by base", "start": "said by start", "tuned": HOSTILE[1]}
    run.write("answers.json", {"answers": [row]})
    page = report_page(run)
    assert "The most likely answers to held-out prompts" in page
    assert "<small>base</small>said by base</div><div><small>start (SFT)</small>said by start</div>" in page
    assert "<small>tuned (PPO)</small>&lt;img src=x" in page
    run.write("answers.json", {"answers": [{"prompt": "p", "start": "s", "tuned": "t"}]})
    assert "<small>start</small>s</div><div><small>tuned</small>t</div>" in report_page(run)


def test_answers_fit_a_terminal_of_80_columns():
    console = Console(record=True, width=80, file=io.StringIO())
    long = "a very ordinary answer of some length " * 4
    console.print(answers_table([{"prompt": "TITLE: " + "t" * 90, "base": long, "start": long, "tuned": HOSTILE[5]}]))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    widths = [len(cell) for cell in next(line for line in lines if "tuned" in line).strip("┃").split("┃")]
    assert min(widths) >= 24  # wide enough to be read, whatever the answers' lengths
    assert "\x1b[31m" not in console.export_text()


def test_a_run_that_is_not_there_yet(tmp_path):
    fresh = Run.new(tmp_path, "fresh").begin(tiny_config())
    with pytest.raises(InputError, match="no finished step yet"):
        report_page(fresh)


def test_a_run_without_verdict_or_samples_has_a_page(tmp_path):
    bare = Run.new(tmp_path, "bare").begin(tiny_config())
    bare.log({"step": 1, "reward": 0.5, "seconds": 1.0})
    page = report_page(bare)
    assert "No verdict yet" in page
    assert "No responses were kept" in page


def test_every_part_of_the_reward_has_a_line_of_its_own(tmp_path):
    bare = Run.new(tmp_path, "bare").begin(tiny_config())
    parts = {"model": 1.0, "repetition": 0.1, "mine": 0.2, "http": 0.3, "human": 0.4}
    bare.log({"step": 1, "reward": 0.5, "seconds": 1.0, "reward_parts": parts})
    page = report_page(bare)
    for number in range(6):
        assert page.count(f'class="c{number}"') >= 2  # the curve, and its key


def test_prompts_with_one_title_are_told_apart(tmp_path):
    bare = Run.new(tmp_path, "bare").begin(tiny_config())
    bare.log({"step": 1, "reward": 0.5, "seconds": 1.0})
    for step in (0, 1):
        bare.log_probes(step, ["TITLE: Same\nPOST: one", "TITLE: Same\nPOST: two"], [f"one {step}", f"two {step}"])
    page = report_page(bare)
    places = [page.index(text) for text in ("one 0", "one 1", "two 0", "two 1")]
    assert places == sorted(places)
    assert page.count("<h3>Same</h3>") == 2


def test_a_headline_is_short():
    assert len(headline("TITLE: " + "x" * 500, 40)) == 40
    assert headline("TITLE: Short\nPOST: long", 40) == "Short"


def test_chart_arithmetic():
    chart = Chart("t", "m", "h", "r", [Line("a", [(1, 0.0), (2, 10.0)])], band=(2.0, 4.0))
    low, high = chart.range
    assert chart.y(high) == 10.0  # the top margin
    assert chart.y(low) == 128.0
    top, height = chart.band_box
    assert 10 < top < top + height < 128
    flat = Chart("t", "m", "h", "r", [Line("a", [(1, 3.0)])])
    assert flat.range[0] < 3.0 < flat.range[1]
    assert nice_ticks(0.0, 1.0) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert [short(v) for v in (0, 0.5, 1234.5, 1e-5, 12.34, -0.25)] == ["0", "0.5", "1234", "1e-5", "12.3", "-0.25"]


@pytest.mark.parametrize("number", [500, 5000])
def test_a_curve_has_no_more_points_than_its_chart_can_show_and_loses_no_peak(number):
    values = [math.sin(step / 50) for step in range(number)]
    values[number // 3], values[number // 2] = 9.0, -9.0  # a single step each
    line = Line("a", [(step + 1, value) for step, value in enumerate(values)])
    chart = Chart("t", "m", "h", "r", [line])
    drawn = [tuple(map(float, point.split(","))) for point in re.findall(r"[ML](\S+)", chart.path(line))]
    assert len(drawn) == number if number == 500 else number / 20 < len(drawn) <= 2 * 306 + 2
    assert drawn == sorted(drawn, key=lambda p: p[0])
    ends = [(chart.x(step), chart.y(value)) for step, value in (line.points[0], line.points[-1])]
    assert [drawn[0], drawn[-1]] == [(round(x, 1), round(y, 1)) for x, y in ends]
    heights = [y for _, y in drawn]
    assert [min(heights), max(heights)] == [round(chart.y(9.0), 1), round(chart.y(-9.0), 1)]


def test_a_chart_looks_at_its_points_a_fixed_number_of_times():
    looks = []

    class Points(list):
        def __iter__(self):
            looks.append(len(self))
            return super().__iter__()

    counts = []
    for number in (100, 5000):
        line = Line("a", Points((float(step), float(step % 7)) for step in range(number)))
        chart = Chart("t", "m", "h", "r", [line], band=(1.0, 2.0))
        looks.clear()
        assert all((chart.path(line), chart.band_box, chart.x_ticks, chart.y_ticks))
        counts.append(len(looks))
    assert max(counts) < 10, counts


def test_of_a_long_run_only_the_responses_that_are_shown_are_parsed(run, monkeypatch):
    sample = run.read_lines("samples.jsonl")[0]
    with (run.folder / "samples.jsonl").open("w") as out:
        for step in range(1, 2001):
            out.write(json.dumps(sample | {"step": step, "tokens": []}) + "\n")  # a response that ended at once
            out.write(json.dumps(sample | {"step": step, "prompt": f"first of {step}"}) + "\n")
            out.write(json.dumps(sample | {"step": step, "prompt": f"second of {step}"}) + "\n")
        out.write('{"step": 2001, "prompt": "torn')
    parsed = []
    plainly = json.loads
    monkeypatch.setattr("burnish.show.samples.json.loads", lambda text: parsed.append(text) or plainly(text))
    chosen = spread_samples(run.folder / "samples.jsonl", 6)
    assert [s["prompt"] for s in chosen] == [f"first of {n}" for n in (1, 401, 801, 1200, 1600, 2000)]
    assert len(parsed) == 7  # and the last line, to see whether it is whole
    assert re.findall(r"<b>step (\d+)</b>", report_page(run)) == ["2000", "1600", "1200", "801", "401", "1"]


@pytest.mark.parametrize("content", [b"\xff\xfe\n", b"[1]\n", b'{"prompt": "x"}\n', b'{"step": 1, "tor\n'])
def test_damaged_samples_are_told(run, content):
    (run.folder / "samples.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=r"samples\.jsonl is damaged"):
        report_page(run)


@pytest.mark.parametrize(
    "secret", ["open&sesame<now>", 'it\'s "said" so', "back\\slash\\n", "\u00e9t\u00e9-\u4e2d-12345"]
)
def test_a_secret_does_not_reach_the_page_in_any_form(run, monkeypatch, secret):
    monkeypatch.setenv("JUDGE_API_KEY", secret)
    # As files have it that were written before the variable was set, or that come from elsewhere.
    rows = run.read_lines("samples.jsonl")
    told = f"{secret} {secret!r} {json.dumps(secret)}"
    changed = [row | {"prompt": told, "tokens": [told, *row["tokens"][1:]]} for row in rows]
    (run.folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed))
    (run.folder / "probes.jsonl").write_text(json.dumps({"step": 0, "prompt": told, "response": told}) + "\n")
    verdict = run.read("verdict.json")
    verdict |= {"sentence": told, "answers": [{"prompt": "x" * 125 + told, "start": told, "tuned": told}]}
    (run.folder / "verdict.json").write_text(json.dumps(verdict))
    settings = run.settings | {"system_prompt": told, "reward": [{"kind": "rule", "options": {"said": told}}]}
    (run.folder / "config.yaml").write_text(json.dumps(settings))
    page = write_report(run).read_text(encoding="utf-8")
    read = html.unescape(page)
    assert "[JUDGE_API_KEY]" in read
    for form in (secret, repr(secret)[1:-1], json.dumps(secret)[1:-1], repr([told])[2:-2], secret[:6]):
        assert form not in read
        assert form not in page


def test_a_secret_that_begins_like_another_is_hidden_whole(monkeypatch):
    monkeypatch.setenv("A_TOKEN", "open-sesame")
    monkeypatch.setenv("B_TOKEN", "open-sesame-and-more")
    assert without_secrets({"open-sesame-and-more": ["open-sesame!"]}) == {"[B_TOKEN]": ["[A_TOKEN]!"]}


# ------------------------------------------------------------------------------------------------ in a real browser


@pytest.mark.parametrize("width", [1200, 390])
def test_nothing_runs_nothing_breaks(run, browser, width):
    page = write_report(run)
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    browser.get(page.as_uri())
    assert browser.title == "run \u00b7 burnish"
    assert browser.execute_script("return document.querySelectorAll('script, img, main h1').length") == 1  # our h1
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert [e for e in browser.get_log("browser") if e["level"] == "SEVERE" and "favicon" not in e["message"]] == []


def test_a_token_tells_all_when_pointed_at(run, browser):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.get(write_report(run).as_uri())
    token = browser.find_elements(By.CSS_SELECTOR, ".response .token")[3]
    tip = token.find_element(By.CSS_SELECTOR, ".tip")
    assert not tip.is_displayed()
    browser.set_window_size(700, 800)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", token)
    ActionChains(browser).move_to_element(token).perform()
    assert tip.is_displayed()
    assert "TD error" in tip.text
    assert "-0.300" in tip.text
    box = browser.execute_script("return arguments[0].getBoundingClientRect().toJSON()", tip)
    assert box["left"] >= 0
    assert box["top"] >= 0
    assert box["right"] <= browser.execute_script("return window.innerWidth")
    assert box["bottom"] <= browser.execute_script("return window.innerHeight")


def test_tokens_are_coloured_by_what_is_chosen(run, browser):
    from selenium.webdriver.common.by import By

    rows = run.read_lines("samples.jsonl")
    zeros, unlike = [0.0] * len(HOSTILE), [-0.5, *[0.1] * (len(HOSTILE) - 1)]
    rows[-1] |= {"advantage": [2.0] * len(HOSTILE), "logprob_policy": unlike, "logprob_ref": zeros}
    (run.folder / "samples.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    browser.get(write_report(run).as_uri())
    first, second = browser.find_elements(By.CSS_SELECTOR, ".response .token")[:2]

    def look(token):
        number = next(s for s in token.find_elements(By.TAG_NAME, "small") if s.is_displayed())
        return number.text, *map(token.value_of_css_property, ("background-color", "border-bottom-style"))

    assert look(first) == look(second)
    assert look(first)[0] == "+1.70"  # less the mean of that step, 0.3, as in its update
    browser.find_element(By.CSS_SELECTOR, "label[for=by-kl]").click()
    (kl, colour, line), (other_kl, other_colour, other_line) = look(first), look(second)
    assert (kl, line, other_kl, other_line) == ("-0.50", "dashed", "+0.10", "solid")
    assert colour != other_colour


def test_report_of_another_stage_is_refused(tmp_path):
    folder = tmp_path / "sft"
    folder.mkdir()
    (folder / "config.yaml").write_text(json.dumps({"demonstrations": "x.jsonl"}))
    with pytest.raises(InputError, match="a report needs a PPO run"):
        report_page(Run.open(folder))
