"""`burnish init`: what it writes is a start, not a puzzle."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from burnish.cli.app import app
from burnish.config import load_train_config
from burnish.config.pipeline_config import load_pipeline_config
from burnish.errors import InputError
from burnish.stages.starting import TEMPLATES, write_template
from tiny import tiny_model, tiny_tokenizer

SMALL = "num_eval_prompts=2 batch_size=8 mini_batch_size=4 steps=1 epochs=1 max_new_tokens=4 max_kl=null".split()
SMALL += "lora_layers=all best_of=1 system_prompt=null".split()


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_loads_and_its_data_is_there(here, name):
    names, command = write_template(name, Path("mine"))
    assert {path.name for path in Path("mine").iterdir()} == set(names)
    assert command == f"burnish {TEMPLATES[name].command} mine/config.yaml"
    if TEMPLATES[name].command == "pipeline":
        config = load_pipeline_config("mine/config.yaml", [])
        named = [config.sft.demonstrations, config.reward_model.preferences, config.ppo.prompts]
    else:
        config = load_train_config("mine/config.yaml")
        named = [config.prompts, *(str(file) for part in config.reward_parts for file in part.files())]
    assert {Path(file).name for file in named} | {"reward.py"} == set(names) - {"config.yaml"}
    assert "#" in Path("mine/config.yaml").read_text()


def with_its_own_reward(name):
    """The file with the lines on reward.py that are comments at first, as a user would switch them on."""
    file = Path("mine/config.yaml")
    text = file.read_text()
    if re.search(r"^ *# reward:", text, re.MULTILINE):
        text = re.sub(r"^reward: \w+.*\n", "", text, flags=re.MULTILINE)
        text = re.sub(r"^( *)# (reward:|  - \{)", r"\1\2", text, flags=re.MULTILINE)
    file.write_text(text)
    if TEMPLATES[name].command == "pipeline":
        return load_pipeline_config(file, []).ppo
    return load_train_config(file)


# Of each template's own reward: answers, and what it gives for them by hand.
REWARDS = {
    "tldr": (["One thing happened.", "Two. Things!", "it breaks off"], [1.0, 0.5, 0.0]),
    "sentiment": (["good good old", "all is new"], [2 / 3, 1.0]),
    "preferences": (["word " * 20, "word " * 22], [0.0, -0.2]),
    "math": (["2 + 2.\nAnswer: 4", "It is 4"], [1.0, 0.0]),
    "blank": (["a b c d e f g h i j.", "a b"], [1.0, -0.8]),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_has_a_reward_to_edit(here, name):
    write_template(name, Path("mine"))
    named = [str(getattr(part, "function", "")) for part in with_its_own_reward(name).reward_parts]
    (address,) = [own for own in named if own]
    file, _, function = address.rpartition(":")
    assert Path(file).resolve() == here / "mine" / "reward.py"
    namespace: dict[str, object] = {}
    exec(compile(Path(file).read_text(), file, "exec"), namespace)
    answers, scores = REWARDS[name]
    assert namespace[function](["?"] * len(answers), answers) == pytest.approx(scores)


def test_nothing_is_written_over(here):
    write_template("blank", Path("mine"))
    Path("mine/reward.py").write_text("my own")
    with pytest.raises(InputError, match="mine exists already, and nothing is written over"):
        write_template("tldr", Path("mine"))
    assert Path("mine/reward.py").read_text() == "my own"
    Path("empty").mkdir()
    write_template("blank", Path("empty"))
    assert Path("empty/config.yaml").is_file()
    assert sorted(path.name for path in here.iterdir()) == ["empty", "mine"]


def test_an_unknown_template_is_told_those_there_are(here):
    with pytest.raises(InputError, match=r"there is no template 'tlrd'.*tldr.*there are tldr, sentiment, preferences"):
        write_template("tlrd", Path("mine"))


def test_without_a_name_the_templates_are_listed(here):
    said = CliRunner().invoke(app, ["init"]).stdout
    assert all(name in said for name in TEMPLATES)
    assert not any(here.iterdir())


def test_the_folder_one_is_in_may_be_the_new_one(here):
    said = CliRunner().invoke(app, ["init", "blank", "."])
    assert said.exit_code == 0, said.output
    assert "Next: burnish train config.yaml" in said.output
    assert Path.cwd().exists()
    assert {file.name for file in here.iterdir()} == {"config.yaml", "prompts.txt", "reward.py"}


def test_the_next_command_is_said_and_quoted(here):
    said = CliRunner().invoke(app, ["init", "blank", "my project"]).stdout
    assert "Next: burnish train 'my project/config.yaml'" in said


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_model(context=2048).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_next_command_runs(here, fork_server, model, name):
    """With a tiny model and few tokens; everything else is the template's."""
    _, command = write_template(name, Path("mine"))
    overrides = [*SMALL, f"model_name={model}"]
    if TEMPLATES[name].command == "pipeline":
        overrides = [
            *(f"model.{own}" for own in (f"model_name={model}", "max_new_tokens=8", "lora_layers=all")),
            *("sft.epochs=1", "sft.batch_size=30", "reward_model.epochs=1", "reward_model.batch_size=48"),
            *(f"ppo.{own}" for own in ("steps=1", "batch_size=8", "mini_batch_size=4", "max_kl=null")),
        ]
    ended = fork_server.run(here, *command.split()[1:], *overrides)
    assert ended.code == 0, ended.text
