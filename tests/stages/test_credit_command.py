"""`burnish credit`: a finished run is measured, and its report says how far the colours may be trusted."""

import contextlib
import json

import pytest

from burnish.cli import judging, knowing, looking, training
from burnish.runs.run import Run
from burnish.show.page import report_page
from tiny import tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    tiny_model().save_pretrained(folder / "model")
    tiny_tokenizer().save_pretrained(folder / "model")
    rows = [{"prompt": f"number {i}:"} for i in range(12)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "judge.py").write_text("def short(prompts, responses):\n    return [-float(len(r)) for r in responses]\n")
    (folder / "config.yaml").write_text(
        "model_name: model\nprompts: prompts.jsonl\nreward: judge.py:short\nnum_eval_prompts: 4\n"
        "batch_size: 4\nsteps: 2\nepochs: 1\nmax_new_tokens: 5\nbest_of: 1\n"
    )
    return folder


@pytest.mark.parametrize(
    ("settings", "measured"),
    [
        (["value_range=[-6, 0]", "reward_against=start"], {"value", "td_error", "advantage"}),
        (["recipe=rloo", "responses_per_prompt=2"], {"advantage"}),
        (["recipe=tether", "responses_per_prompt=2"], {"value", "td_error", "advantage"}),
    ],
    ids=["gae", "rloo", "tether"],
)
def test_a_run_is_measured_and_its_report_says_so(folder, settings, measured, capsys):
    name = settings[0].partition("=")[2].strip("[]").replace(", ", "")
    with contextlib.chdir(folder):
        training.train("config.yaml", [*settings, f"run_name=run{name}"])
        run = Run(folder / "runs" / f"run{name}")
        before = report_page(run)
        looking.report(str(run.folder))
        capsys.readouterr()
        judging.credit(str(run.folder), prompts=3, positions=2, continuations=3)
    said = capsys.readouterr().out
    assert "advantages" in said
    found = run.read("credit.json")
    assert set(found["agreements"]) == measured
    assert (found["responses"], found["continuations"]) == (3, 3)
    page = (run.folder / "report.html").read_text()  # made again, since there was one
    assert "measured on 3 held-out responses, 3 continuations each" in page
    assert ("no value model" in before) == ("value" not in measured)
    assert (f"`burnish credit runs/run{name}` measures" in before) == ("value" in measured)  # as it can be typed


def test_what_a_recipe_sets_is_printed(capsys):
    knowing.config(recipe="rloo")
    said = capsys.readouterr().out
    assert "baseline: leave_one_out\nresponses_per_prompt: 4\ngamma: 1.0\nwhiten_advantages: false\n" in said
    with pytest.raises(Exception, match="there is no recipe 'rlo'; did you mean 'rloo'"):
        knowing.config(recipe="rlo")
