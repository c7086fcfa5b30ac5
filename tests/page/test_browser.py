"""The page in a real browser, over a run that is really training: every view, live, with the keyboard, stopped from the
page and resumed. One browser and one run serve all tests of this file, in their order.
"""

import json
import time
from urllib.parse import quote

import pytest

from burnish.config import TrainConfig
from burnish.runs.journal import condition_of
from burnish.runs.run import Run
from failures import make_workplace, waiting_for
from served import served

NAME = "live"
CONFIG = """
model_name: model
prompts: prompts.jsonl
reward: [{kind: python, function: judge.py:score}, {kind: rule, name: repetition, weight: 0.5}]
num_eval_prompts: 4
batch_size: 8
responses_per_prompt: 2
steps: 100000
epochs: 1
max_new_tokens: 6
lora_r: 4
learning_rate: 0.001
max_kl: null
samples_per_step: 4
"""
JUDGE = (
    "import time\n"
    "def score(prompts, responses):\n"
    "    time.sleep(0.25)\n"
    "    return [sum(map(ord, r)) % 10 / 10 for r in responses]\n"
)
HOSTILE = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"


@pytest.fixture(scope="module")
def live(browser, tmp_path_factory, fork_server):
    """A run of a tiny model with hostile prompts that goes on until it is stopped, its process, the page over it."""
    folder = make_workplace(tmp_path_factory.mktemp("live"), CONFIG)
    (folder / "judge.py").write_text(JUDGE)
    rows = [{"prompt": f"{HOSTILE if number == 0 else 'number'} {number}:"} for number in range(14)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pid = fork_server.start(folder, "train", "config.yaml", f"run_name={NAME}")
    run = Run(folder / "runs" / NAME)
    other = Run(run.folder.with_name(HOSTILE.replace("/", "")))  # as somebody may have named a folder
    other.begin(TrainConfig(prompts=HOSTILE)).log({"step": 1, "reward": 0.5})
    waiting_for(run.folder / "metrics.jsonl", lines=4)
    with served(folder / "runs") as page:
        yield folder, run, pid, page
    if condition_of(run).state == "running":
        condition_of(run).process.kill()


def text_of(browser, selector):
    return browser.execute_script("return document.querySelector(arguments[0])?.innerText ?? null", selector)


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
    return found


def keys(browser, *sent):
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys(*sent).perform()


def nothing_broke(browser, width):
    assert browser.title != "owned"
    assert browser.execute_script("return document.querySelectorAll('main img, main script').length") == 0
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    errors = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []


def sized(browser, width):
    wanted = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", wanted)


def test_every_view_fits_and_runs_nothing_at_any_width(browser, live):
    *_, page = live
    name = quote(NAME)
    for width in (1280, 390):
        sized(browser, width)
        for path in ("/", f"/run/{name}", f"/rollouts/{name}", f"/same-prompt/{name}", f"/credit/{name}",
                     f"/compare?run={name}&run={quote(HOSTILE.replace('/', ''))}",
                     f"/run/{quote(HOSTILE.replace('/', ''))}"):  # fmt: skip
            browser.get(page.address + path)
            until(lambda: browser.execute_script("return document.readyState") == "complete")
            nothing_broke(browser, width)
    sized(browser, 1280)


def test_a_run_is_watched_without_a_reload_and_without_a_jump(browser, live):
    *_, page = live
    browser.get(f"{page.address}/run/{quote(NAME)}")
    browser.execute_script("window.same = true; document.getElementById('numbers').open = true; scrollTo(0, 200)")
    assert text_of(browser, ".state") == "running"
    sentence = text_of(browser, ".verdict")
    assert sentence.startswith("So far. After step ")
    height = browser.execute_script("return document.querySelector('.charts').offsetTop")
    until(lambda: text_of(browser, ".verdict") != sentence)
    assert browser.execute_script("return window.same && document.getElementById('numbers').open") is True
    assert browser.execute_script("return scrollY") == 200
    assert abs(browser.execute_script("return document.querySelector('.charts').offsetTop") - height) <= 1
    assert "begun" in text_of(browser, ".log")
    assert "GB now" in text_of(browser, "[data-live=memory]")
    until(lambda: text_of(browser, ".phases .current"))
    assert browser.find_element("id", "stop").get_attribute("disabled")  # reading needs no token, stopping does
    nothing_broke(browser, 1280)


def test_runs_are_searched_as_one_types_and_walked_with_keys(browser, live):
    *_, page = live
    browser.get(page.address)
    assert text_of(browser, "tbody th") == NAME
    keys(browser, "/", "zzz")
    until(lambda: "No runs match" in (text_of(browser, ".empty") or ""))
    assert "text=zzz" in browser.current_url
    from selenium.webdriver.common.keys import Keys

    keys(browser, Keys.BACKSPACE * 3)
    until(lambda: text_of(browser, "tbody th") == NAME)
    keys(browser, Keys.ESCAPE)
    keys(browser, "j", "x")
    until(lambda: browser.execute_script("return document.querySelector('.pick input').checked"))
    until(
        lambda: (
            (before := text_of(browser, ".progress")) and (time.sleep(1.5) or text_of(browser, ".progress") != before)
        )
    )
    assert browser.execute_script("return document.querySelector('.pick input').checked")  # also after a change
    nothing_broke(browser, 1280)


def test_responses_are_filtered_by_the_histogram_and_by_words(browser, live):
    *_, page = live
    browser.get(f"{page.address}/rollouts/{quote(NAME)}")
    assert len(browser.find_elements("css selector", ".group")) > 1
    assert len(browser.find_elements("css selector", ".group:first-of-type .response")) == 2  # side by side
    assert "repetition" in text_of(browser, ".group .score")
    browser.execute_script("window.same = true")
    everything = text_of(browser, "[data-live=found] > .small")
    browser.execute_script(
        "const bar = [...document.querySelectorAll('.bars a')].find((b) => !b.ariaLabel.startsWith('0 of'));"
        "bar.dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}))"
    )
    until(lambda: text_of(browser, "[data-live=found] > .small") != everything)
    assert "low=" in browser.current_url
    assert "show all" in text_of(browser, "[data-live=found] > .small")
    browser.back()
    until(lambda: "low=" not in browser.current_url)
    keys(browser, "/", "number")
    until(lambda: "text=number" in browser.current_url)
    until(lambda: "number" in text_of(browser, ".group summary"))
    assert browser.execute_script("return window.same") is True
    nothing_broke(browser, 1280)


def test_one_prompt_is_followed_with_the_slider(browser, live):
    from selenium.webdriver.common.keys import Keys

    *_, page = live
    browser.get(f"{page.address}/same-prompt/{quote(NAME)}?prompt=2")
    until(lambda: text_of(browser, "output[for=step]"))
    last = text_of(browser, "output[for=step]")

    def at_the_first():  # pressed again if the page was just being refreshed
        browser.execute_script("document.getElementById('step').focus()")
        keys(browser, Keys.HOME)
        return text_of(browser, "output[for=step]") != last

    until(at_the_first)
    shown = [own for own in browser.find_elements("css selector", "[data-answer]") if own.is_displayed()]
    assert len(shown) == 1
    assert shown[0].find_elements("css selector", "ins, del") == []  # the first answer against itself
    prompt = browser.execute_script("return document.querySelector('.prompt').textContent")
    browser.execute_script(
        "const list = document.querySelector('select'); list.value = '1';"
        "list.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    until(lambda: browser.execute_script("return document.querySelector('.prompt').textContent") != prompt)
    until(lambda: sum(own.is_displayed() for own in browser.find_elements("css selector", "[data-answer]")) == 1)
    nothing_broke(browser, 1280)


def test_tokens_tell_all_to_the_keyboard_and_not_by_colour_alone(browser, live):
    from selenium.webdriver.common.keys import Keys

    *_, page = live
    browser.get(f"{page.address}/credit/{quote(NAME)}?number=0")
    tokens = browser.find_elements("css selector", ".tokens .token")
    assert len(tokens) > 2
    until(
        lambda: browser.execute_script(
            "arguments[0].focus(); return !document.getElementById('panel').hidden", tokens[0]
        )
    )
    keys(browser, Keys.ARROW_RIGHT)
    assert browser.switch_to.active_element == tokens[1]
    panel = text_of(browser, "#panel")
    for label in ("log-probability", "KL", "TD error", "advantage", "value", "return"):
        assert label in panel
    row = browser.execute_script("return [...document.querySelectorAll('#row-1 td')].map((cell) => cell.textContent)")
    assert all(number in panel for number in row)
    for token in tokens:
        number = float(browser.execute_script("return arguments[0].querySelector('small').textContent", token))
        style = token.value_of_css_property("border-bottom-style")
        assert style == ("dashed" if number < 0 else "solid")
    keys(browser, Keys.ESCAPE)
    assert browser.find_element("id", "panel").get_attribute("hidden")
    keys(browser, "v")
    until(lambda: "by=value" in browser.current_url)
    assert "value model" in text_of(browser, ".legend")
    nothing_broke(browser, 1280)


CONTRAST = """
const linear = (v) => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; };
const light = (c) => .2126 * linear(c[0]) + .7152 * linear(c[1]) + .0722 * linear(c[2]);
const parse = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return [n.slice(0, 3), n[3] ?? 1]; };
const behind = (element) => {
  const layers = [];
  for (let e = element; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor));
  let colour = [255, 255, 255];
  for (const [c, a] of layers.reverse()) colour = colour.map((v, i) => v * (1 - a) + c[i] * a);
  return colour;
};
const texts = [...document.querySelectorAll('body *')].filter((e) => e.offsetParent && !e.closest('svg') && !e.disabled
  && [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()));
return texts.map((e) => {
  const [a, b] = [light(parse(getComputedStyle(e).color)[0]), light(behind(e))].sort((x, y) => y - x);
  return [(a + .05) / (b + .05), e.tagName + '.' + e.className, e.textContent.trim().slice(0, 30)];
}).filter(([ratio]) => ratio < 4.5);
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_enough(browser, live, scheme):
    """WCAG AA: a contrast of 4.5 between a text and what is behind it."""
    *_, page = live
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    name = quote(NAME)
    for path in ("/", f"/run/{name}", f"/rollouts/{name}", f"/same-prompt/{name}", f"/credit/{name}", "/compare"):
        browser.get(page.address + path)
        until(lambda: browser.execute_script("return document.readyState") == "complete")
        assert browser.execute_script(CONTRAST) == [], path
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_run_is_stopped_on_the_page_and_resumed_by_its_command(browser, live, fork_server):
    folder, run, pid, page = live
    browser.get(f"{page.address}/run/{quote(NAME)}?token={page.access.token}")
    assert "token" not in browser.current_url
    browser.find_element("id", "stop").click()
    ended = fork_server.wait(pid)
    assert ended.code == 130
    assert "and saved" in ended.text
    until(lambda: text_of(browser, ".state") == "stopped")
    assert "stopped after step" in text_of(browser, ".why")
    command = text_of(browser, "#resume")
    assert command == f"burnish resume {run.folder}"
    rows = [row["event"] for row in run.read_lines("journal.jsonl")]
    assert rows == ["begun", "stopping", "stopped"]
    done = len(run.read_lines("metrics.jsonl"))
    resumed = fork_server.start(folder, "resume", run.folder, f"steps={done + 2}")
    until(lambda: text_of(browser, ".state") in ("running", "finished"))
    assert fork_server.wait(resumed).code == 0
    until(lambda: text_of(browser, ".state") == "finished")
    until(lambda: text_of(browser, ".badge"))
    assert len(run.read_lines("metrics.jsonl")) == done + 2
    nothing_broke(browser, 1280)
