"""A key that is held down, in a real browser: what it chooses is chosen once; walking goes on."""

import json

import pytest
from test_browser import text_of, until

from burnish.config import TrainConfig
from burnish.evaluation.said import Said
from burnish.runs.run import Run
from served import served

CODES = {"ArrowLeft": 37, "x": 88, "j": 74, "2": 50}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    rows = [{"prompt": f"p {n}", "answers": [f"a {n}", f"b {n}"]} for n in range(10)]
    (folder / "answers.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for n in range(5):
        Run.new(folder / "runs", f"run {n}").begin(TrainConfig(prompts="p.txt")).log({"step": 1, "reward": 0.5})
    with served(folder / "runs", labelled=folder / "answers.jsonl") as page:
        yield folder, page


def press(browser, key, repeats):
    """Down, down again as a keyboard repeats it, and up."""
    event = {"key": key, "code": key, "windowsVirtualKeyCode": CODES[key]}
    for number in range(1 + repeats):
        down = event | {"type": "rawKeyDown", "autoRepeat": number > 0}
        browser.execute_cdp_cmd("Input.dispatchKeyEvent", down)
    browser.execute_cdp_cmd("Input.dispatchKeyEvent", event | {"type": "keyUp"})


def asked(browser):
    return text_of(browser, ".asked .small") or ""


def ready(browser):
    """The view's own module is there, and hears keys."""
    until(lambda: browser.execute_script("return document.readyState") == "complete")
    loaded = "return performance.getEntriesByType('resource').some((own) => own.name.endsWith('judge.js'))"
    until(lambda: browser.execute_script(loaded))


def test_a_choice_that_is_held_down_is_made_once(browser, place):
    folder, page = place
    browser.get(f"{page.address}/judge?token={page.access.token}&judge=ann")
    until(lambda: asked(browser).startswith("1 of"))
    ready(browser)
    press(browser, "ArrowLeft", repeats=30)
    until(lambda: asked(browser).startswith("2 of"))
    ready(browser)
    press(browser, "ArrowLeft", repeats=30)
    until(lambda: asked(browser).startswith("3 of"))
    assert len(Said(folder, "answers-").rows()) == 2


def test_what_repeats_on_the_next_question_does_not_answer_it(browser, place):
    folder, page = place
    browser.get(f"{page.address}/judge?judge=bob")
    until(lambda: asked(browser).startswith("1 of"))
    ready(browser)
    event = {"key": "ArrowLeft", "code": "ArrowLeft", "windowsVirtualKeyCode": 37, "type": "rawKeyDown"}
    for _ in range(5):  # the key went down before this page was there
        browser.execute_cdp_cmd("Input.dispatchKeyEvent", event | {"autoRepeat": True})
    press(browser, "ArrowLeft", repeats=0)
    until(lambda: asked(browser).startswith("2 of"))
    assert sum(row["judge"] == "bob" for row in Said(folder, "answers-").rows()) == 1


def test_in_the_list_a_choice_repeats_not_and_walking_does(browser, place):
    _, page = place
    browser.get(page.address)
    until(lambda: browser.execute_script("return document.body.dataset.connected") == "yes")
    press(browser, "j", repeats=2)
    rows = browser.find_elements("css selector", "[data-row]")
    assert browser.switch_to.active_element == rows[2]
    press(browser, "x", repeats=3)
    chosen = "return [...document.querySelectorAll('.pick input')].map((own) => own.checked)"
    assert browser.execute_script(chosen) == [False, False, True, False, False]
