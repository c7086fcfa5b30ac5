"""A run's own models asked in a real browser: both answer, one is preferred, the reward says what it thinks."""

import pytest
from test_browser import browser, nothing_broke, text_of, until  # noqa: F401

from burnish.data import load_preferences
from burnish.runs.run import Run
from failures import CONFIG, make_workplace
from served import served


@pytest.fixture(scope="module")
def place(tmp_path_factory, fork_server):
    folder = make_workplace(tmp_path_factory.mktemp("trying"), CONFIG)
    ended = fork_server.wait(fork_server.start(folder, "train", "config.yaml", "run_name=tried", "steps=2"))
    assert ended.code == 0, ended.text
    with served(folder / "runs") as page:
        yield Run(folder / "runs" / "tried"), page


def test_start_and_tuned_answer_and_the_better_one_is_kept(browser, place):  # noqa: F811
    run, page = place
    browser.get(f"{page.address}/chat/tried?token={page.access.token}")
    until(lambda: browser.execute_script("return document.readyState") == "complete")
    asking, scoring = browser.find_elements("css selector", ".asking")
    asking.find_element("name", "prompt").send_keys("number <b>3</b>:")
    asking.find_element("css selector", "button").click()
    until(lambda: len(browser.find_elements("css selector", "[data-answers] button")) == 2, 120)
    assert [own.text for own in browser.find_elements("css selector", "[data-answers] h2")] == ["base", "tuned"]
    texts = browser.execute_script(
        "return [...document.querySelectorAll('[data-answers] .said')].map((own) => own.textContent)"
    )
    browser.find_elements("css selector", "[data-answers] button")[1].click()
    until(lambda: "Kept" in text_of(browser, "[data-answers]"))
    (row,) = load_preferences(run.folder / "preferences.jsonl").records
    assert (row.prompt, row.chosen, row.rejected) == ("number <b>3</b>:", texts[1], texts[0])
    scoring.find_element("name", "prompt").send_keys("number 3:")
    scoring.find_element("name", "response").send_keys("ab")
    scoring.find_element("css selector", "button").click()
    until(lambda: text_of(browser, "[data-scores] table"), 60)
    # a + b = 97 + 98 = 195, and 195 % 10 / 10 = 0.5
    assert "0.500" in text_of(browser, "[data-scores] tbody tr:last-child")
    nothing_broke(browser, 1280)
