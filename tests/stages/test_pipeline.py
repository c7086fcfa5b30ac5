"""From human feedback to a verdict on a tiny model in a folder: every stage, as a user runs it."""

import io
import json
import os
import random
import shutil
import signal
import warnings
from pathlib import Path

import pytest
import torch
from rich.console import Console

from burnish import InputError, PolicyModel, PPOTrainer
from burnish.config.pipeline_config import load_pipeline_config
from burnish.data import Prompt, load_preferences, prompts_of
from burnish.errors import LockedError, StoppedError
from burnish.evaluation import people
from burnish.evaluation.evaluation import Evaluation
from burnish.evaluation.measure import EVAL_SEED, evaluate
from burnish.models.adapter_files import load_adapter
from burnish.rollout.sampling import Sampler
from burnish.runs.run import Run
from burnish.show.terminal import chooser
from burnish.stages import sft
from burnish.stages.evaluate import evaluate_run
from burnish.stages.generate import generate_beside_start
from burnish.stages.judging import _best_of, start_model
from burnish.stages.leaks import warn_of_leaks
from burnish.stages.overview import list_runs, show_difference
from burnish.stages.pipeline import begun_pipeline, rows_of, run_pipeline
from burnish.stages.pipeline_data import readable_data
from burnish.stages.report import write_report
from burnish.stages.reward_test import show_reward
from burnish.stages.stage import STAGES
from tiny import tiny_model, tiny_tokenizer

PIPELINE = """
model:
  model_name: model
  lora_r: 4
  max_new_tokens: 8
  lora_dropout: 0.0
sft:
  demonstrations: demonstrations.jsonl
  epochs: 4
  batch_size: 8
  learning_rate: 0.01
  num_eval_prompts: 4
reward_model:
  preferences: preferences.csv
  epochs: 4
  batch_size: 8
  learning_rate: 0.005
  num_eval_prompts: 6
  num_centring_prompts: 8
ppo:
  prompts: prompts.txt
  num_eval_prompts: 6
  reward: [{kind: rule, name: repetition, weight: 0.2}]
  eval_reward: [{kind: rule, name: regex, options: {pattern: z}}]
  value_from_reward: true
  steps: 3
  batch_size: 8
  epochs: 1
  top_k: 0
  top_p: 1.0
  learning_rate: 0.003
best_of: 2
run_dir: runs
run_name: whole
"""


def recording():
    """A console whose text is kept and shown nowhere."""
    return Console(record=True, width=120, file=io.StringIO())


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("feedback")
    tiny_model().save_pretrained(folder / "model")
    tiny_tokenizer().save_pretrained(folder / "model")
    draw = random.Random(0)
    prompts = [f"number {i}:" for i in range(24)]
    answers = ["".join(draw.choice("abcde") for _ in range(6)) for _ in prompts]
    rows = [{"prompt": p, "completion": a[:2] + "z" + a[3:]} for p, a in zip(prompts, answers, strict=True)]
    (folder / "demonstrations.jsonl").write_text("\n".join(map(json.dumps, rows)))
    lines = [f"{p},{a[:3]}z{a[4:]},{a}" for p, a in zip(prompts, answers, strict=True)]
    (folder / "preferences.csv").write_text("\n".join(["prompt,chosen,rejected", *lines]))
    (folder / "prompts.txt").write_text("\n".join(prompts))
    (folder / "pipeline.yaml").write_text(PIPELINE)
    return folder


@pytest.fixture(scope="module")
def pipeline(workplace):
    """The pipeline, run once."""
    config = load_pipeline_config(workplace / "pipeline.yaml", [f"run_dir={workplace / 'runs'}"])
    console = recording()
    run = run_pipeline(config, console)
    return config, run, console.export_text()


def test_every_stage_leaves_its_folder(pipeline):
    config, run, _ = pipeline
    assert {p.name for p in config.folder.iterdir()} == {
        ".pipeline.yaml", ".pipeline.yaml.hmac", ".lock", "sft", "reward", "ppo",
    }  # fmt: skip
    assert (config.folder / "sft" / "adapters" / "sft").is_dir()
    assert (config.folder / "reward" / "adapters" / "reward" / "head.safetensors").is_file()
    assert {p.name for p in run.folder.iterdir()} == {
        "config.yaml", "config.yaml.hmac", "metrics.jsonl", "samples.jsonl", "probes.jsonl", "adapters", "result.json",
        "verdict.json", "answers.json", "report.html", "start.json", "checkpoints", "journal.jsonl", "log.txt", ".lock",
    }  # fmt: skip


def test_stages_stand_on_each_other(pipeline):
    config, run, text = pipeline
    assert config.reward_model.sft == config.ppo.sft == str(config.folder / "sft")
    assert [part.kind for part in config.ppo.reward_parts] == ["model", "rule"]
    assert (config.reward_model.top_k, config.reward_model.top_p) == (0, 1.0)  # centred on answers as PPO draws them
    rows = run.read_lines("metrics.jsonl")
    assert [r["step"] for r in rows] == [1, 2, 3]
    assert rows[0]["kl"] == pytest.approx(0.0, abs=1e-3)  # measured from the SFT model
    assert set(rows[0]["reward_parts"]) == {"model", "repetition"}
    assert {p["step"] for p in run.read_lines("probes.jsonl")} == {0, 1, 2, 3}
    sft = Run.open(config.folder / "sft").read("result.json")
    assert sft["loss_after"] < sft["loss_before"]
    for heading in ("supervised fine-tuning", "is this reward model any good?", "3 of 3: PPO", "duplicate rows"):
        assert heading in text


def test_what_is_measured_on_was_never_trained_on(pipeline, workplace):
    config, run, _ = pipeline
    held_out = {a["prompt"] for a in run.read("verdict.json")["answers"]}
    assert len(held_out) == 6
    data = STAGES["sft"].load(config.sft)
    held_out |= set(prompts_of(STAGES["reward"].load(config.reward_model).held_out))  # it starts from the SFT model
    both = {d.prompt for d in data.train} & held_out
    assert both  # prompts that SFT would have trained on, had they not been taken out
    num_train = int(Run.open(config.folder / "sft").read("result.json")["data"]["demonstration"][0][1])
    assert num_train == len(data.train) - len(both)


def test_verdict_and_report(pipeline):
    _, run, text = pipeline
    verdict = run.read("verdict.json")
    assert verdict["outcome"] in ("worth it", "over-optimised", "undecided", "too few to tell", "failure")
    assert verdict["sentence"].split(":")[0] in " ".join(text.split())
    assert verdict["win_rate"]["num_prompts"] == 6
    assert verdict["win_rate_by_second_reward"] is not None
    assert verdict["best_of_n"]["n"] == 2
    assert "Credit, token by token" in (run.folder / "report.html").read_text()


@pytest.mark.parametrize("override", ["best_of=7", "ppo.best_of=7"])
def test_best_of_can_be_given_where_it_used_to_be(workplace, override):
    both = (workplace / "pipeline.yaml").read_text().replace("  steps: 3", "  steps: 3\n  best_of: 3")
    (workplace / "both.yaml").write_text(both)
    assert load_pipeline_config(workplace / "both.yaml", [override]).ppo.best_of == 7


def test_a_start_named_in_model_lies_beside_the_file_or_where_the_command_was_given(workplace, tmp_path, monkeypatch):
    sections = PIPELINE.split("sft:\n")[0] + "reward_model:" + PIPELINE.split("reward_model:")[1]
    (workplace / "start.yaml").write_text(sections.replace("  lora_r: 4", "  lora_r: 4\n  sft: start"))
    (workplace / "start").mkdir()
    (tmp_path / "start").mkdir()
    monkeypatch.chdir(tmp_path)
    of_file = load_pipeline_config(workplace / "start.yaml")
    assert of_file.starts == dict.fromkeys(["reward_model", "ppo"], str(workplace / "start"))
    of_command = load_pipeline_config(workplace / "start.yaml", ["model.sft=start"])
    assert of_command.starts == dict.fromkeys(["reward_model", "ppo"], str(tmp_path / "start"))


def test_a_folder_s_name_is_taken_as_it_is(workplace):
    config = load_pipeline_config(workplace / "pipeline.yaml", ["run_dir=a #1: b", "run_name=007"])
    assert config.folder == Path("a #1: b/007")


def test_another_best_of_makes_no_other_run(pipeline, workplace):
    """It concerns the verdict alone; and older versions did not write it into the run's config."""
    other = load_pipeline_config(workplace / "pipeline.yaml", [f"run_dir={workplace / 'runs'}", "ppo.best_of=3"])
    console = recording()
    run_pipeline(other, console)
    assert console.export_text().count("already done") == 3


def test_base_start_and_tuned_model_are_shown_with_what_a_user_would_get(pipeline, workplace):
    """The same that `burnish generate` gives; training and verdict draw what they would have drawn without it."""
    config, run, text = pipeline
    kept = run.read("answers.json")["answers"]
    assert [row["prompt"] for row in kept] == [str(p) for p in STAGES["ppo"].load(config.ppo).held_out]
    trainer = PPOTrainer(config.ppo)
    load_adapter(trainer.base, "policy", run.policy_folder)
    prompts = [row["prompt"] for row in kept]
    trainer.generator.agree_on_invocation(prompts)
    greedy = Sampler(greedy=True)
    for name, adapter in (("base", None), ("start", "sft"), ("tuned", "policy")):
        speaker = PolicyModel(trainer.base, adapter)
        _, texts = trainer.generator.generate_sequences(prompts, sampler=greedy, speaker=speaker)
        assert [row[name] for row in kept] == texts, name
    assert any(row["base"] != row["start"] != row["tuned"] for row in kept)
    assert "start (SFT)" in text
    assert "tuned (PPO)" in (run.folder / "report.html").read_text()


def test_the_reward_model_s_own_sampling_wins_and_a_mistake_is_told_once(workplace):
    own = load_pipeline_config(workplace / "pipeline.yaml", ["reward_model.top_p=0.5", "ppo.temperature=0.7"])
    assert (own.reward_model.temperature, own.reward_model.top_k, own.reward_model.top_p) == (0.7, 0, 0.5)
    with pytest.raises(InputError, match="ppo: temperature") as error:
        load_pipeline_config(workplace / "pipeline.yaml", ["ppo.temperature=hot"])
    assert "reward_model" not in str(error.value)


def test_a_reward_model_may_have_several_members(workplace):
    """Each is a run of its own, from the same rows with another seed, and PPO asks them all."""
    settings = [f"run_dir={workplace / 'runs'}", "run_name=several", "reward_model.members=2", "ppo.steps=1"]
    config = load_pipeline_config(workplace / "pipeline.yaml", [*settings, "ppo.value_from_reward=false"])
    assert list(config.stages) == ["sft", "reward", "reward-2", "ppo"]
    assert [own.seed for own in config.reward_models] == [0, 1]
    assert config.ppo.reward_parts[0].judges == [str(config.folder / name) for name in ("reward", "reward-2")]
    run = run_pipeline(config, recording())
    assert "ensemble disagreement" in run.read_lines("metrics.jsonl")[0]["reward_parts"]
    heads, rows = (
        [(config.folder / name / file).read_bytes() for name in ("reward", "reward-2")]
        for file in ("adapters/reward/head.safetensors", "trained_on.json")
    )
    assert heads[0] != heads[1]
    assert rows[0] == rows[1]
    shutil.rmtree(config.folder / "ppo")
    (config.folder / "reward-2" / "result.json").unlink()  # stopped in its last stage but one
    console = recording()
    run_pipeline(begun_pipeline(console, config.folder, []), console)
    assert console.export_text().count("already done") == 2
    assert heads[1] == (config.folder / "reward-2" / "adapters" / "reward" / "head.safetensors").read_bytes()
    for members in ("0", "17", "two", "true"):
        with pytest.raises(InputError, match="reward_model: members takes a whole number from 1 to 16"):
            load_pipeline_config(workplace / "pipeline.yaml", [f"reward_model.members={members}"])


def test_a_stage_that_an_older_version_finished_is_done(pipeline):
    """It knew nothing of a key that the pipeline fills in now."""
    config, _, _ = pipeline
    file = config.folder / "reward" / "config.yaml"
    before = file.read_text()
    file.write_text("".join(line for line in before.splitlines(True) if not line.startswith("top_")))
    try:
        console = recording()
        run_pipeline(config, console)
        assert console.export_text().count("already done") == 3
    finally:
        file.write_text(before)


def test_a_second_run_skips_what_is_done(pipeline):
    config, run, _ = pipeline
    before = (run.folder / "metrics.jsonl").read_text()
    console = recording()
    run_pipeline(config, console)
    assert console.export_text().count("already done") == 3
    assert (run.folder / "metrics.jsonl").read_text() == before


def test_other_settings_in_a_finished_folder_are_refused(pipeline, workplace):
    changed = load_pipeline_config(workplace / "pipeline.yaml", [f"run_dir={workplace / 'runs'}", "sft.epochs=5"])
    with pytest.raises(InputError, match=r"is finished, with other settings.*epochs: 4 -> 5"):
        run_pipeline(changed, Console(quiet=True))


def test_other_data_in_a_finished_folder_is_refused(pipeline, workplace):
    config, _, _ = pipeline
    file = workplace / "demonstrations.jsonl"
    before = file.read_text()
    file.write_text(before.replace("z", "y"))
    try:
        with pytest.raises(InputError, match=r"sft is finished, with other data; choose another run_name, or move it"):
            run_pipeline(config, Console(quiet=True))
    finally:
        file.write_text(before)


def test_a_stage_that_is_missing_is_not_skipped_over(pipeline, workplace):
    config, _, _ = pipeline
    (config.folder / "reward").rename(workplace / "aside")
    try:
        with pytest.raises(InputError, match=r"ppo is finished, but the stage reward before it is not; move it away"):
            run_pipeline(config, Console(quiet=True))
    finally:
        (workplace / "aside").rename(config.folder / "reward")


def test_a_pipeline_s_folder_belongs_to_one_process(pipeline, workplace):
    config, _, _ = pipeline
    before = (config.folder / ".pipeline.yaml").read_text()
    other = load_pipeline_config(workplace / "pipeline.yaml", [f"run_dir={workplace / 'runs'}", "ppo.best_of=3"])
    with Run(config.folder).lock(), pytest.raises(LockedError, match="in use by process"):
        run_pipeline(other, Console(quiet=True))
    assert (config.folder / ".pipeline.yaml").read_text() == before


@pytest.mark.parametrize("key", ["reward", "eval_reward"])
def test_a_reward_that_cannot_be_is_found_before_the_first_stage(workplace, key):
    settings = [f"run_dir={workplace / 'never'}", f"ppo.{key}=sentimental", "ppo.value_from_reward=false"]
    with pytest.raises(InputError, match="did you mean 'sentiment'"):
        run_pipeline(load_pipeline_config(workplace / "pipeline.yaml", settings), Console(quiet=True))
    assert not (workplace / "never").exists()


def test_eval_refuses_data_that_changed(pipeline, workplace):
    _, run, _ = pipeline
    file = workplace / "prompts.txt"
    before = file.read_text()
    file.write_text(before + "\n" + "\n".join(f"another {i}:" for i in range(6)))
    try:
        with pytest.raises(InputError, match="some of them may have been trained on"):
            evaluate_run(Console(quiet=True), str(run.folder))
    finally:
        file.write_text(before)


def test_eval_asks_a_person_blind_and_keeps_the_choices(pipeline):
    _, run, _ = pipeline
    shown = []

    def prefers_the_longer(question):
        first, second = question.answers
        shown.append((first, second))
        return "1" if len(first) >= len(second) else "2"

    console = recording()
    verdict = evaluate_run(console, str(run.folder), best_of=1, ask=6, choose=prefers_the_longer)
    kept = run.read_lines("preferences.jsonl")
    assert len(kept) == len(shown) == verdict.human_wins.num_prompts
    assert all(len(row["chosen"]) >= len(row["rejected"]) for row in kept)
    assert verdict.best_of_n is None
    answers = {a["prompt"]: a for a in run.read("verdict.json")["answers"]}
    by_tuned = [row["chosen"] == answers[row["prompt"]]["tuned"] for row in kept]
    assert verdict.human_wins.rate == pytest.approx(sum(by_tuned) / len(by_tuned))
    # What was chosen counts in later verdicts, and is not asked again.
    again = evaluate_run(console, str(run.folder), best_of=1, ask=6, choose=prefers_the_longer)
    assert len(run.read_lines("preferences.jsonl")) == len(shown) == len(kept)
    assert again.human_wins == evaluate_run(console, str(run.folder), best_of=1).human_wins == verdict.human_wins
    tied = [row | {"better": "tie"} for row in run.read_lines("choices.jsonl")]
    (run.folder / "choices.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tied))
    assert evaluate_run(console, str(run.folder), best_of=1).human_wins.rate == 0.5


def test_eval_takes_as_many_answers_as_the_config_says_unless_told(pipeline):
    _, run, _ = pipeline
    for asked_for, taken in ((3, 3), (1, None), (None, 2)):
        best = evaluate_run(Console(quiet=True), str(run.folder), asked_for).best_of_n
        assert (best and best["n"]) == taken


def test_the_verdict_compares_what_it_says(pipeline):
    """The start is the SFT model, best of n is the best, and surprise is the bare base's."""
    config, run, _ = pipeline
    trainer = PPOTrainer(config.ppo)
    load_adapter(trainer.base, "policy", run.policy_folder)
    prompts = STAGES["ppo"].load(config.ppo).held_out
    start = evaluate(trainer, prompts, start_model(trainer))
    assert max(map(abs, start.kl)) < 1e-4  # to the SFT adapter, which the reference is
    base = evaluate(trainer, prompts, PolicyModel(trainer.base, None, config.ppo.temperature))
    assert base.texts != start.texts
    best = _best_of(trainer, start, 4)
    assert all(b >= s for b, s in zip(best.reward, start.reward, strict=True))
    assert sum(best.reward) > sum(start.reward)
    tuned = evaluate(trainer, prompts)
    pairs, texts = trainer.generator.generate_sequences(prompts, torch.Generator().manual_seed(EVAL_SEED))
    assert texts == tuned.texts
    for number, prompt in enumerate(prompts):
        question = tiny_tokenizer()(prompt)["input_ids"]
        answer = pairs["action"][number][pairs.mask[number]].tolist()
        with torch.no_grad():
            logits = tiny_model()(input_ids=torch.tensor([[*question, *answer]])).logits[0].log_softmax(-1)
        said = [logits[len(question) - 1 + n, token].item() for n, token in enumerate(answer)]
        assert tuned.surprise[number] == pytest.approx(-sum(said) / len(said), abs=1e-3)


def test_no_stage_learns_what_a_later_one_is_measured_on(workplace):
    settings = [f"run_dir={workplace / 'runs'}", "run_name=apart", "ppo.seed=3", "reward_model.seed=5"]
    config = load_pipeline_config(workplace / "pipeline.yaml", settings)
    console = recording()
    data = readable_data(config, rows_of(config), console)
    held_out = {name: set(prompts_of(own.split.held_out)) for name, own in data.items()}
    trained = {name: set(prompts_of(own.split.train)) for name, own in data.items()}
    assert held_out["ppo"] - held_out["reward"]  # else this says nothing
    assert not trained["reward"] & held_out["ppo"]
    assert not trained["sft"] & (held_out["ppo"] | held_out["reward"])
    left_out = 24 - len(held_out["reward"] | held_out["ppo"])
    assert len(trained["reward"]) == left_out
    assert f"reward: {18 - left_out} training rows left out" in console.export_text()


def test_prompts_that_an_earlier_command_learned_are_told(pipeline, workplace):
    config, _, _ = pipeline
    stages = {"sft": str(config.folder / "sft"), "reward": str(config.folder / "reward")}
    seen = prompts_of(readable_data(config, rows_of(config), Console(quiet=True))["sft"].split.train)[0]
    with pytest.warns(
        UserWarning, match=r"1 of the 2 held-out prompts were trained on in .*sft, so the verdict looks too good"
    ):
        warn_of_leaks(config.ppo.model_copy(update=stages), [seen, "something else:"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_leaks(config.ppo, STAGES["ppo"].load(config.ppo).held_out)


def test_what_no_stage_could_read_is_found_before_the_first(workplace):
    long = "x" * 300 + ":"
    (workplace / "with_long.txt").write_text((workplace / "prompts.txt").read_text() + f"\n{long}")
    settings = [f"run_dir={workplace / 'runs'}", "run_name=long", f"ppo.prompts={workplace / 'with_long.txt'}"]
    with pytest.raises(InputError, match=r"with_long.txt:25 has 301 tokens"):
        run_pipeline(load_pipeline_config(workplace / "pipeline.yaml", settings), Console(quiet=True))
    config = load_pipeline_config(workplace / "pipeline.yaml", [*settings, "ppo.skip_bad=true"])
    data = readable_data(config, rows_of(config), recording())
    assert {name: own.split.num_left_out for name, own in data.items()} == {"sft": 0, "reward": 0, "ppo": 1}
    assert long not in data["ppo"].split.everything

    lines = (workplace / "prompts.txt").read_text().splitlines()
    (workplace / "other_ends.txt").write_text("\n".join([*lines[:-1], "another ending"]))
    settings[-1] = f"ppo.prompts={workplace / 'other_ends.txt'}"
    with pytest.raises(InputError, match=r"all prompts of sft end in ':', .* but 1 of ppo end differently"):
        run_pipeline(load_pipeline_config(workplace / "pipeline.yaml", settings), Console(quiet=True))


def test_a_stop_between_two_stages_waits_for_none(workplace, monkeypatch):
    work = sft.run

    def then_stopped(*arguments, **more):
        work(*arguments, **more)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(sft, "run", then_stopped)
    config = load_pipeline_config(workplace / "pipeline.yaml", [f"run_dir={workplace / 'runs'}", "run_name=halted"])
    with pytest.raises(StoppedError, match=r"between two stages\. Resume with: burnish resume .*halted") as stopped:
        run_pipeline(config, Console(quiet=True))
    assert stopped.value.exit_code == 143
    assert not (config.folder / "reward").exists()


def test_a_choice_about_a_chat_stays_a_chat(tmp_path):
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    run = Run(tmp_path)
    answers = [Evaluation(prompts=[Prompt("hi", messages=messages)], texts=[text]) for text in ("one", "two")]
    people.ask(run, *answers, 1, lambda question: "1")
    (row,) = run.read_lines("preferences.jsonl")
    assert row["prompt"] == messages
    assert load_preferences(tmp_path / "preferences.jsonl").records[0].prompt.messages == messages


def question(prompt):
    return people.Question(prompt, "a", "b", number=3, how_many=5, tuned_first=True)


def test_an_end_of_input_is_enough(monkeypatch):
    def ended(*_):
        raise EOFError

    monkeypatch.setattr("builtins.input", ended)
    assert chooser(recording())(question("prompt")) == "q"


def test_a_choice_is_asked_for_until_it_is_one(monkeypatch):
    keys = iter(["", "3", "p", "Tie"])
    monkeypatch.setattr("builtins.input", lambda *_: next(keys))
    console = recording()
    assert chooser(console)(question("TITLE: A title\n" + "long " * 200)) == "t"
    shown = console.export_text()
    assert shown.count("Please type 1, 2, t, u, p or q.") == 2
    assert "3 of 5" in shown
    assert "A title" in shown
    assert shown.count("long ") == 200  # once, when it was asked for


def test_runs_diff_and_reward_test(pipeline, workplace):
    config, run, _ = pipeline
    console = recording()
    list_runs(console, str(workplace / "runs"))
    listed = console.export_text()
    for name in ("whole/sft", "whole/reward", "whole/ppo", "accuracy", "loss"):
        assert name in listed
    show_difference(console, str(run.folder), str(run.folder))
    assert "the same" in console.export_text()
    show_reward(console, config.ppo, "number 3:", "aaz aaz aaz")
    shown = console.export_text()
    assert "model" in shown
    assert "repetition" in shown


def test_what_sft_taught_can_be_asked(pipeline):
    config, _, told = pipeline
    assert "SFT 10/" in told
    console = recording()
    generate_beside_start(console, str(config.folder / "sft"), ["number 3:"], 8, sample=False, seed=0)
    lines = [line.replace("┃", "│").split("│")[1:3] for line in console.export_text().splitlines() if line[0] in "┃│"]
    heading, (base, tuned) = ([cell.strip() for cell in line] for line in lines)
    assert heading == ["base", "tuned"]
    assert base != tuned  # the most likely answers: only what was taught can tell them apart
    with pytest.raises(InputError, match="judges answers and gives none"):
        generate_beside_start(console, str(config.folder / "reward"), ["number 3:"], 4, sample=False, seed=0)


def test_a_ppo_run_is_compared_with_the_model_it_started_from(pipeline, tmp_path):
    config, run, _ = pipeline
    asked = ["number 3:", "number 4:"]
    shown = {}
    for folder in (config.folder / "sft", run.folder):
        console = recording()
        generate_beside_start(console, str(folder), asked, 8, sample=False, seed=0)
        rows = [
            line.replace("┃", "│").split("│")[1:3] for line in console.export_text().splitlines() if line[0] in "┃│"
        ]
        shown[folder.name] = [[cell.strip() for cell in row] for row in rows]
    assert shown["ppo"][0] == ["SFT", "tuned"]
    moved = shutil.copytree(config.folder, tmp_path / "moved (copy)")
    (moved / "ppo" / "config.yaml").write_text(
        (moved / "ppo" / "config.yaml").read_text().replace(str(config.folder), "/nowhere")
    )
    console = recording()
    generate_beside_start(console, str(moved / "ppo"), asked[:1], 8, sample=False, seed=0, trust=True)
    assert "SFT" in console.export_text()
    alone = shutil.copytree(moved / "ppo", tmp_path / "alone")
    generate_beside_start(console, str(alone), asked[:1], 8, sample=False, seed=0, trust=True)
    assert "is not there; the base answers instead" in " ".join(console.export_text().split())
    taught = [row[1] for row in shown["sft"] if row != ["base", "tuned"]]
    start = [row[0] for row in shown["ppo"] if row != ["SFT", "tuned"]]
    assert start == taught  # what SFT ended with is what PPO started from
    assert len(start) == len(asked)


def test_a_choice_can_be_taken_back(tmp_path):
    run = Run(tmp_path)
    sides = [Evaluation(prompts=["p", "q"], texts=[f"{side} {n}" for n in (1, 2)]) for side in ("start", "tuned")]
    said = iter(["u", "1", "u", "t", "2"])
    asked = []
    people.ask(run, *sides, 5, lambda question: asked.append(question.number) or next(said))
    assert asked == [1, 1, 2, 1, 2]
    first, second = run.read_lines("choices.jsonl")
    assert (first["prompt"], first["better"]) == ("p", "tie")
    assert second["better"] in ("start", "tuned")
    assert len(run.read_lines("preferences.jsonl")) == 1  # a tie is none, and what was taken back is gone


def test_what_the_verdict_was_made_from_is_asked_about_without_a_model(pipeline, monkeypatch):
    _, run, _ = pipeline
    before = evaluate_run(Console(quiet=True), str(run.folder))
    (run.folder / "choices.jsonl").unlink(missing_ok=True)
    monkeypatch.setattr("burnish.stages.judging.PPOTrainer", None)
    after = evaluate_run(Console(quiet=True), str(run.folder), ask=3, choose=lambda question: "1")
    assert after.human_wins.num_prompts == 3
    assert (after.wins, after.second_wins, after.best_of_n) == (before.wins, before.second_wins, before.best_of_n)


def test_report_goes_where_it_is_wanted(pipeline, tmp_path):
    _, run, _ = pipeline
    assert write_report(run, tmp_path / "page.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("sft:", "stf:"), "unknown section 'stf'; did you mean 'sft'"),
        (("  steps: 3", "  stepps: 3"), "ppo: unknown key 'stepps'; did you mean 'steps'"),
        (("  demonstrations: demonstrations.jsonl\n", ""), "sft: demonstrations is missing"),
        (("run_name: whole", "run_name: ../x"), "run_name"),
        (("  steps: 3", "  steps: 3\n  run_name: mine"), r"line \d+: ppo: the pipeline itself sets run_name"),
    ],
)
def test_mistakes_in_a_pipeline(workplace, change, message):
    file = workplace / "mistake.yaml"
    assert change[0] in PIPELINE
    file.write_text(PIPELINE.replace(*change))
    with pytest.raises(InputError, match=message):
        load_pipeline_config(file)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("ppo.steps=[1", "override 'ppo.steps=\\[1'.* not valid YAML"),
        ("steps", "not of the form section.key=value"),
        ("ppoo.x=1", "there is no section 'ppoo'; did you mean 'ppo'"),
        ("steps=4", "name the section too, such as ppo.steps=4"),
        ("ppo.steps=0", r"1 error in .*:\n  - ppo: steps"),
    ],
)
def test_mistakes_in_overrides_of_a_pipeline(workplace, override, message):
    with pytest.raises(InputError, match=message):
        load_pipeline_config(workplace / "pipeline.yaml", [override])


@pytest.mark.parametrize("reward", ["mine.py:my-func", "3"])
def test_a_reward_that_cannot_be_beside_the_learned_one(workplace, reward):
    with pytest.raises(InputError, match="ppo: reward, part 2: "):
        load_pipeline_config(workplace / "pipeline.yaml", [f"ppo.reward={reward}"])


def test_a_shared_section_that_is_none_is_told_once(workplace):
    file = workplace / "text.yaml"
    file.write_text("model: tiny\nppo:\n  prompts: prompts.jsonl\n")
    with pytest.raises(InputError, match=r"1 error in .*\n  - line 1: model must be a mapping"):
        load_pipeline_config(file)


def test_an_empty_section_takes_overrides(workplace):
    file = workplace / "empty.yaml"
    file.write_text("model:\nppo:\n  prompts: prompts.jsonl\n")
    assert load_pipeline_config(file, ["model.seed=3", "ppo.steps=7"]).ppo.seed == 3
    file.write_text("model: text\nppo:\n  prompts: prompts.jsonl\n")
    with pytest.raises(InputError, match=r"is no mapping of `key: value` lines, so 'model.seed=3' has no place"):
        load_pipeline_config(file, ["model.seed=3"])


def test_sections_that_make_different_bases_are_refused_all_at_once(workplace):
    settings = ["sft.model_name=other", "reward_model.dtype=bfloat16", "ppo.lora_r=2", "ppo.adapter_scope=sequence"]
    with pytest.raises(InputError) as refused:
        load_pipeline_config(workplace / "pipeline.yaml", settings)
    text = str(refused.value)
    assert text.startswith("4 errors in ")
    assert "model_name differs between sections (sft: 'other', reward_model: " in text
    assert "dtype differs between sections (sft: 'auto', reward_model: 'bfloat16', ppo: 'auto')" in text
    assert "lora_r differs between sections (" in text
    assert "adapter_scope differs between sections (" in text
    assert "all stages share one base, so set it once, in model" in text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_name", "other"),
        ("dtype", "bfloat16"),
        ("device", "cpu"),
        ("lora_r", 2),
        ("lora_alpha", 3),
        ("lora_layers", 1),
        ("lora_target_modules", "[q_proj]"),
        ("adapter_scope", "sequence"),
        ("chat_template", True),
    ],
)
def test_no_key_that_makes_the_base_may_differ(workplace, key, value):
    with pytest.raises(InputError, match=rf"1 error in .*\n.* {key} differs between sections"):
        load_pipeline_config(workplace / "pipeline.yaml", [f"reward_model.{key}={value}"])


def test_nor_the_system_prompt_that_prompts_are_read_behind(workplace):
    settings = ["model.chat_template=true", "reward_model.system_prompt=be kind"]
    with pytest.raises(InputError, match=r"1 error in .*\n.* system_prompt differs between sections"):
        load_pipeline_config(workplace / "pipeline.yaml", settings)


def test_what_does_not_make_the_base_may_differ(workplace):
    settings = ["sft.lora_dropout=0.3", "ppo.max_new_tokens=5", "reward_model.seed=4", "sft.prompt_cache_mb=3"]
    assert load_pipeline_config(workplace / "pipeline.yaml", settings).sft.lora_dropout == 0.3
    alike = [f"{section}.lora_r=2" for section in ("sft", "reward_model", "ppo")]
    assert load_pipeline_config(workplace / "pipeline.yaml", alike).ppo.lora_r == 2


def test_any_reward_may_stand_beside_the_learned_one(workplace):
    config = load_pipeline_config(workplace / "pipeline.yaml", ["ppo.reward=mine.py:f"])
    assert [part.kind for part in config.ppo.reward_parts] == ["model", "python"]
