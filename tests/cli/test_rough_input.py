"""Rough input: names, paths, numbers and terminals that nobody planned for end in a sentence, never in a traceback."""

import io
import json
import shutil
import time

import pytest
import yaml
from rich.console import Console

from burnish import InputError, PPOConfig
from burnish.base_setup.tokenizer_setup import PromptEncoder
from burnish.config import RewardModelConfig, SFTConfig, TrainConfig, load_train_config
from burnish.data import Prompt
from burnish.show import terminal
from failures import ForkServer, make_workplace
from tiny import tiny_tokenizer

FOREIGN = "\u6570\u5b57 \u2192 \u0142 \U0001f408"  # in neither ASCII nor Latin-1
LONG = "x" * 300
PATHS = ("run_dir", "prompts", "eval_prompts", "model_name", "sft", "reward", "eval_reward")
TERMINALS = {
    "utf-8": {},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "C": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
}


@pytest.fixture(scope="module")
def fork_servers(tmp_path_factory):
    """A prepared process for each kind of terminal, made when it is first needed."""
    made = {}

    def fork_server(kind="utf-8"):
        if kind not in made:
            with pytest.MonkeyPatch.context() as patch:
                for name, value in TERMINALS[kind].items():
                    patch.setenv(name, value)
                made[kind] = ForkServer(tmp_path_factory.mktemp(kind))
        return made[kind]

    yield fork_server
    for fork_server in made.values():
        fork_server.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = make_workplace(tmp_path_factory.mktemp("rough"))
    rows = [
        {"prompt": f"number {i}: {FOREIGN}", "completion": FOREIGN, "chosen": FOREIGN, "rejected": "no"}
        for i in range(14)
    ]
    for name in ("prompts", "feedback"):
        (place / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = {"model_name": "model", "num_eval_prompts": 4, "batch_size": 4, "epochs": 1, "lora_r": 4}
    for name, data in (("sft", "demonstrations"), ("reward", "preferences")):
        (place / f"{name}.yaml").write_text(yaml.safe_dump(settings | {data: "feedback.jsonl", "max_new_tokens": 30}))
    model = {"model_name": "model", "max_new_tokens": 4, "lora_r": 4}
    ppo = {"prompts": "feedback.jsonl", "reward": "judge.py:score", "steps": 1, "batch_size": 4, "num_eval_prompts": 4}
    sft = {"demonstrations": "feedback.jsonl", "epochs": 1, "num_eval_prompts": 4}
    (place / "pipeline.yaml").write_text(yaml.safe_dump({"model": model, "sft": sft, "ppo": ppo}))
    return place


def ends_well(fork_server, folder, *arguments):
    outcome = fork_server.run(folder, *arguments)
    assert outcome.code == 0, outcome.text
    assert "Traceback" not in outcome.err
    return outcome.out


# ---------------------------------------------------------------------------------------------------------- terminals


@pytest.mark.parametrize("kind", ["latin-1", "C"])
def test_a_terminal_that_lacks_letters_ends_no_command(fork_servers, folder, kind):
    fork_server, run = fork_servers(kind), f"runs/{kind}"
    out = ends_well(fork_server, folder, "train", "config.yaml", f"run_name={kind}", "steps=2")
    assert "\\u6570\\u5b57" in out.replace("\n", "")  # a letter's number instead of the letter
    assert (folder / run / "result.json").is_file()
    ends_well(fork_server, folder, "eval", run)
    ends_well(fork_server, folder, "generate", run, "number 3:")
    ends_well(fork_server, folder, "report", run)
    assert FOREIGN in (folder / run / "report.html").read_text(encoding="utf-8")
    ends_well(fork_server, folder, "reward", "reward.yaml", f"run_name=reward-{kind}")
    shutil.copytree(folder / run, folder / "runs" / FOREIGN, dirs_exist_ok=True)
    ends_well(fork_server, folder, "runs")
    missing = fork_server.run(folder, "train", "config.yaml", f"prompts={FOREIGN}.jsonl")
    assert (missing.code, "Traceback" in missing.err) == (2, False), missing.text


def test_what_moves_in_a_terminal_uses_only_letters_that_it_has():
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")  # which raises on any other
    console = Console(file=screen, force_terminal=True)
    with terminal.busy(console, "loading model[/x]"), terminal.StepProgress(Console(file=screen, quiet=True), 3):
        time.sleep(0.3)
    with terminal.updates(console, "SFT", 3) as on_update:
        on_update({"update": 1, "loss": 0.5})
    screen.flush()
    assert b"loading model[/x]" in screen.buffer.getvalue()


# ------------------------------------------------------------------------------------------------- names and paths


def test_markup_in_names_is_shown_as_it_is(fork_servers, folder):
    fork_server, place = fork_servers(), "old[/x][bold] :cat:s"
    named = f"run_dir={place}"
    for stage in ("sft", "reward"):
        assert place in " ".join(
            ends_well(fork_server, folder, stage, f"{stage}.yaml", named, "run_name=" + stage).split()
        )
    (folder / "[b]odd.py").write_text("def score(prompts, responses):\n    return [len(r) for r in responses]\n")
    shutil.copytree(folder / "model", folder / "model[/x]", dirs_exist_ok=True)
    rules = "[{kind: rule, name: regex, options: {pattern: '[/x]'}}, {kind: python, function: '[b]odd.py:score'}]"
    settings = ("config.yaml", named, "run_name=ppo", "model_name=model[/x]", f"reward={rules}", f"sft={place}/sft")
    out = " ".join(ends_well(fork_server, folder, "train", *settings, "steps=1").split())
    assert f'burnish generate {place}/ppo "your prompt"' in out
    assert f"Run folder: {place}/ppo" in out
    run = f"{place}/ppo"
    assert f"{run} is already finished" in ends_well(fork_server, folder, "train", *settings, "steps=1")
    assert "Changed: steps" in ends_well(fork_server, folder, "train", *settings, "steps=2")
    changed = ends_well(fork_server, folder, "resume", run, "steps=3", f"reward={rules.replace('[/x]', '[/y]')}")
    assert "'pattern': '[/y]'" in " ".join(changed.split())
    ends_well(fork_server, folder, "generate", run, "[/x] :cat:")
    ends_well(fork_server, folder, "diff", run, f"{place}/sft")
    for command in ("eval", "checkpoints", "verify"):
        ends_well(fork_server, folder, command, run)
    assert f"{run}/report.html" in ends_well(fork_server, folder, "report", run)
    assert "ppo" in ends_well(fork_server, folder, "runs", place)
    shutil.rmtree(folder / run / "checkpoints")
    assert f"{run} has no checkpoints" in ends_well(fork_server, folder, "checkpoints", run)
    assert f"Report, with credit token by token: {place}/all" in ends_well(
        fork_server, folder, "pipeline", "pipeline.yaml", named, "run_name=all"
    )
    assert f"already done ({place}/all/ppo)" in ends_well(
        fork_server, folder, "pipeline", "pipeline.yaml", named, "run_name=all"
    )


def test_control_characters_in_names_are_not_obeyed(fork_servers, folder):
    out = ends_well(fork_servers(), folder, "train", "config.yaml", "run_dir=a\x1b[31mb", "run_name=x", "steps=1")
    assert "\x1b" not in out
    assert "a[31mb/x" in out
    refused = fork_servers().run(folder, "train", "a\x1b[31mb.yaml")
    assert (refused.code, "\x1b[31mb" in refused.err) == (2, False)


@pytest.mark.parametrize(
    "arguments",
    [
        *(["train", "config.yaml", "run_name=x", f"{key}={LONG}"] for key in ("run_dir", "prompts", "eval_prompts")),
        *(
            ["train", "config.yaml", "run_name=x", f"{key}={LONG}"]
            for key in ("model_name", "sft", "reward", "eval_reward")
        ),
        *([command, LONG] for command in ("train", "report", "runs", "resume", "checkpoints", "verify", "eval")),
        ["generate", LONG, "x"],
        ["diff", LONG, "x"],
        ["demo", "--task", "sentiment", "--run-dir", LONG],
    ],
    ids=lambda arguments: " ".join(a[:20] for a in arguments),
)
def test_a_name_too_long_for_the_disk_is_told(fork_servers, folder, arguments):
    outcome = fork_servers().run(folder, *arguments)
    assert outcome.code == 2, outcome.text
    assert "Traceback" not in outcome.err
    assert LONG in outcome.text
    assert "File name too long" in outcome.text


@pytest.mark.parametrize("text", ['"a\\0b"', '"a\\ud800b"'])
def test_text_that_no_file_can_hold_is_refused(tmp_path, text):
    (tmp_path / "c.yaml").write_text(f"prompts: p.txt\nrun_dir: {text}\n")
    with pytest.raises(InputError, match="run_dir: this text holds characters that no file can"):
        load_train_config(tmp_path / "c.yaml")


# ----------------------------------------------------------------------------------------------------- chat templates

BODY = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
REFUSES_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
ALTERNATES = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}"
)


def encoder_with(template, system_prompt=None):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return PromptEncoder(tokenizer, 256, 8, chat_template=True, system_prompt=system_prompt)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (REFUSES_SYSTEM + BODY, "refuses a system message: System role not supported; leave system_prompt out"),
        ("{{ nothing.at.all }}", "chat template cannot be used: .*undefined.*; set chat_template: false"),
        ("{% if %}", "chat template cannot be used: "),
        ("{{ 'a' + 1 }}", "chat template cannot be used: "),
        ("{{ 1 // 0 }}", "chat template cannot be used: "),
    ],
)
def test_a_chat_template_that_cannot_be_used_is_told_once(template, message):
    with pytest.raises(InputError, match=message):
        encoder_with(template, "Be brief.")


def test_a_chat_that_its_template_refuses_is_told_by_its_place():
    encoder = encoder_with(ALTERNATES + BODY)
    twice = Prompt("a b", "file.jsonl:7", messages=[{"role": "user", "content": c} for c in "ab"])
    assert encoder.try_encode("alone")[1] is None
    with pytest.raises(InputError, match=r"file.jsonl:7 is refused by the model's chat template: roles must alternate"):
        encoder.encode(["alone", twice])


def test_a_template_without_system_messages_ends_a_run_in_a_sentence(fork_servers, folder):
    shutil.copytree(folder / "model", folder / "strict", dirs_exist_ok=True)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = REFUSES_SYSTEM + BODY
    tokenizer.save_pretrained(folder / "strict")
    outcome = fork_servers().run(
        folder, "train", "config.yaml", "model_name=strict", "chat_template=true", "system_prompt=Be brief."
    )
    assert (outcome.code, "Traceback" in outcome.err) == (2, False), outcome.text
    assert "refuses a system message: System role not supported" in outcome.text


# ---------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("top_p", 1e-300), ("temperature", 1e-300), ("temperature", 1e300), ("value_clip", 1e300), ("kl_coef", 1e308),
        ("learning_rate", 1e38), ("learning_rate", 2), ("value_learning_rate", 1e38), ("max_grad_norm", 1e300),
        ("stop_token_penalty", 1e300), ("adaptive_kl_target", 1e-300), ("adaptive_kl_target", 1e300),
        ("target_kl_stop", 1e300), ("max_kl", 1e300), ("reward_timeout", 1e300),
    ],
)  # fmt: skip
def test_a_number_that_no_one_can_mean_is_refused_with_its_range(key, value):
    with pytest.raises(InputError, match=f"{key}: Input should be (greater|less) than or equal to") as caught:
        PPOConfig(**{key: value})
    assert f"(got {value!r})" in str(caught.value)


def test_more_layers_than_any_model_has_are_refused():
    with pytest.raises(InputError, match="lora_layers: takes `all`, a number of top layers"):
        PPOConfig(lora_layers=10**30)


@pytest.mark.parametrize("kind", [TrainConfig, SFTConfig, RewardModelConfig])
def test_no_number_of_a_config_may_be_endless(kind):
    data = {"prompts": "p.txt"} if kind is TrainConfig else {"demonstrations": "d", "preferences": "p"}
    data = {key: value for key, value in data.items() if key in kind.model_fields}
    numbers = [key for key, field in kind.model_fields.items() if field.annotation in NUMBERS]
    assert len(numbers) > 10
    for key in numbers:
        with pytest.raises(InputError, match=f"{key}: "):
            kind(**data, **{key: 10**30})


NUMBERS = (int, float, int | None, float | None)
