"""Judging in a real browser with the keyboard alone, and a reward model that learns from it."""

import json
import math

import pytest
from test_browser import keys, nothing_broke, sized, text_of, until

from burnish.data import load_preferences
from burnish.runs.run import Run
from failures import make_workplace
from served import served

HOSTILE = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
REWARD = """
model_name: model
preferences: answers-preferences.jsonl
batch_size: 2
learning_rate: 0.01
num_eval_prompts: 2
num_centring_prompts: 2
max_new_tokens: 6
lora_r: 4
run_name: judged
"""


@pytest.fixture
def place(tmp_path):
    folder = make_workplace(tmp_path, REWARD)
    rows = [{"prompt": f"{HOSTILE} {n}", "answers": [f"yes {n}", f"no {HOSTILE} {n}"]} for n in range(10)]
    (folder / "answers.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "runs").mkdir()
    with served(folder / "runs", labelled=folder / "answers.jsonl") as page:
        yield folder, page


def test_ten_pairs_judged_with_the_keyboard_train_a_reward_model(browser, place, fork_server):
    from selenium.webdriver.common.keys import Keys

    folder, page = place

    def asked():
        return text_of(browser, ".asked .small")

    def left_says_yes():
        return text_of(browser, ".pair .response .said").startswith("yes")

    def press(*sent):
        before = asked()
        keys(browser, *sent)
        until(lambda: asked() != before)

    browser.get(f"{page.address}/judge?token={page.access.token}")
    sized(browser, 390)
    nothing_broke(browser, 390)
    sized(browser, 1280)
    keys(browser, "n", "ann", Keys.ENTER)
    until(lambda: "judge=ann" in browser.current_url)
    assert asked().startswith("1 of 11")
    press("s")
    press("u")
    assert asked().startswith("1 of 11")
    for _ in range(10):
        press(Keys.ARROW_LEFT if left_says_yes() else Keys.ARROW_RIGHT)
    assert asked().startswith("11 of 11")  # one of them again
    keys(browser, Keys.SHIFT + (Keys.ARROW_LEFT if left_says_yes() else Keys.ARROW_RIGHT))
    until(lambda: "All 11 are judged, ann" in (text_of(browser, ".empty") or ""))
    browser.find_element("css selector", "#results summary").click()
    assert "100 % of 1" in text_of(browser, "#results")  # herself, when asked again
    browser.get(f"{page.address}/judge")  # the browser knows her
    until(lambda: "judge=ann" in browser.current_url)
    nothing_broke(browser, 1280)
    learned = load_preferences(folder / "answers-preferences.jsonl").records
    assert len(learned) == 10
    assert all(own.chosen.startswith("yes") and own.rejected.startswith("no") for own in learned)
    ended = fork_server.wait(fork_server.start(folder, "reward", "config.yaml"))
    assert ended.code == 0, ended.text
    assert Run(folder / "runs" / "judged").read("result.json")["report"]["num_pairs"] == 2
    browser.get(f"{page.address}/reward/judged")
    assert "held-out pairs" in text_of(browser, "main")
    nothing_broke(browser, 1280)
    told = page.post("/api/chat/judged", {"do": "score", "prompt": "number 3:", "response": "yes"}).text.splitlines()
    (part,) = json.loads(told[-1])["parts"]
    assert (part["name"], part["weight"], part["tokens"]) == ("model", 1.0, None)
    assert math.isfinite(part["score"])
    assert [own["text"] for own in part["growing"]] == ["", "y", "e", "s"]
    assert math.isclose(part["growing"][-1]["score"], part["score"], rel_tol=1e-5)
    beginning = page.post("/api/chat/judged", {"do": "score", "prompt": "number 3:", "response": "ye"}).text
    alone = json.loads(beginning.splitlines()[-1])["parts"][0]["score"]
    assert math.isclose(part["growing"][2]["score"], alone, rel_tol=1e-4)
    browser.get(f"{page.address}/chat/judged?token={page.access.token}")
    browser.find_element("name", "prompt").send_keys("number 3:")
    browser.find_element("name", "response").send_keys("yes")
    browser.find_element("css selector", ".asking button").click()
    until(lambda: text_of(browser, "[data-growing]"), 120)
    assert len(browser.find_elements("css selector", "[data-growing] .token")) == 3
    nothing_broke(browser, 1280)
