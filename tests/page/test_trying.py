"""A run that the page started, and its models asked in a real browser: both answer, one is preferred, and the reward
says what it thinks.
"""

import pytest
import yaml
from test_browser import CONTRAST, nothing_broke, sized, text_of, until

from burnish.data import load_preferences
from burnish.runs.run import Run
from failures import CONFIG, make_workplace
from served import served


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Started on one page, which then ends; looked at on another."""
    folder = make_workplace(tmp_path_factory.mktemp("trying"), CONFIG)
    (folder / "runs").mkdir()
    with pytest.MonkeyPatch.context() as patch, served(folder / "runs") as page:
        patch.chdir(folder)
        form = yaml.safe_load(CONFIG) | {"run_name": "tried", "steps": 2, "do": "start"}
        form |= {"chat_template": "true", "save_every": 1}
        assert page.post("/api/start", form).json["is_started"]
    run, log = Run(folder / "runs" / "tried"), folder / "runs" / "tried-start.log"
    until(lambda: run.is_complete or "rror" in log.read_text(), 120)
    assert run.is_complete, log.read_text()
    with served(folder / "runs") as page:
        yield run, page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_views_that_write_stand_out_and_fit(browser, place, scheme):
    _, page = place
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    for path in ("/judge/tried", "/judge/tried?how=score", "/chat/tried", "/start", "/reward/tried"):
        for width in (390, 1280):
            sized(browser, width)
            browser.get(page.address + path)
            until(lambda: browser.execute_script("return document.readyState") == "complete")
            assert browser.execute_script(CONTRAST) == [], path
            nothing_broke(browser, width)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_start_and_tuned_answer_and_the_better_one_is_kept(browser, place):
    run, page = place
    browser.get(f"{page.address}/chat/tried?token={page.access.token}")
    until(lambda: browser.execute_script("return document.readyState") == "complete")
    asking, scoring = browser.find_elements("css selector", ".asking")
    asking.find_element("name", "prompt").send_keys("number <b>3</b>:")
    asking.find_element("css selector", "button").click()
    until(lambda: len(browser.find_elements("css selector", "[data-answers] .better")) == 2, 120)
    assert [own.text for own in browser.find_elements("css selector", "[data-answers] h2")] == ["base", "tuned"]
    texts = browser.execute_script(
        "return [...document.querySelectorAll('[data-answers] .said')].map((own) => own.textContent)"
    )
    browser.find_elements("css selector", "[data-answers] .better")[1].click()
    until(lambda: "Kept" in text_of(browser, "[data-answers]"))
    (row,) = load_preferences(run.folder / "preferences.jsonl").records
    assert (row.prompt, row.chosen, row.rejected) == ("number <b>3</b>:", texts[1], texts[0])
    whose = asking.find_elements("name", "who")
    assert whose[0].text.split("\n") == ["start", "step 1", "step 2", "tuned"]
    whose[0].send_keys("step 2")
    browser.find_element("xpath", "//section[2]/button[text()='Go on from this']").click()
    assert text_of(browser, "[data-thread]").split("\n")[0] == "you"
    asking.find_element("name", "prompt").send_keys("and then?")
    asking.find_element("css selector", "button").click()
    until(lambda: len(browser.find_elements("css selector", "[data-answers] button")) >= 2, 60)
    assert [own.text for own in browser.find_elements("css selector", "[data-answers] h2")] == ["step 2", "tuned"]
    spoken = browser.execute_script(
        "return [...document.querySelectorAll('[data-answers] .said')].map((own) => own.textContent)"
    )
    assert spoken[0] == spoken[1]  # the last checkpoint is what the run ended with
    assert spoken[1] != texts[1]
    scoring.find_element("name", "prompt").send_keys("number 3:")
    scoring.find_element("name", "response").send_keys("ab")
    scoring.find_element("css selector", "button").click()
    until(lambda: text_of(browser, "[data-scores] table"), 60)
    # a + b = 97 + 98 = 195, and 195 % 10 / 10 = 0.5
    assert "0.500" in text_of(browser, "[data-scores] tbody tr:last-child")
    nothing_broke(browser, 1280)
