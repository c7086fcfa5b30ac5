"""Config errors: all at once, with the nearest name, before anything is loaded."""

from pathlib import Path

import pytest

from burnish import InputError, PPOConfig, TrainConfig, load_train_config
from burnish.config import RewardModelConfig, SFTConfig, load_config
from burnish.config.documentation import field_lines
from burnish.errors import ConfigError
from burnish.rewards.part import Workshop
from burnish.stages.stage import STAGES


def write(tmp_path, text):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return file


def test_all_errors_come_at_once():
    with pytest.raises(InputError) as caught:
        PPOConfig(lernin_rate=1e-4, clip_epsilon=2, top_p=0, lora_layers="most", batch_size="many")
    message = str(caught.value)
    assert message.startswith("5 errors in the config:")
    assert "unknown key 'lernin_rate'; did you mean 'learning_rate'?" in message
    for field in ("clip_epsilon", "top_p", "lora_layers", "batch_size"):
        assert f"- {field}: " in message


@pytest.mark.parametrize("name", PPOConfig.model_fields)
def test_every_key_misspelt_by_one_letter_is_refused_with_its_name(name):
    misspelt = name[:-1] + ("x" if name[-1] != "x" else "y")
    with pytest.raises(InputError, match=f"unknown key '{misspelt}'; did you mean '"):
        PPOConfig(**{misspelt: 1})


def test_batch_must_be_a_multiple_of_the_mini_batch():
    with pytest.raises(
        InputError, match="batch_size 10 is not a multiple of mini_batch_size 4; try batch_size 8 or 12"
    ):
        PPOConfig(batch_size=10, mini_batch_size=4)


@pytest.mark.parametrize("layers", [0, -1, [], [-1], "top"])
def test_layers_that_cannot_be_are_refused(layers):
    with pytest.raises(InputError, match="lora_layers"):
        PPOConfig(lora_layers=layers)


def test_rules_between_keys_come_at_once_too():
    with pytest.raises(InputError, match="3 errors in the config"):
        PPOConfig(batch_size=10, mini_batch_size=4, system_prompt="x", steps=1, value_warmup_steps=1)


def test_config_is_frozen():
    with pytest.raises(Exception, match=r"a config does not change; make another one: config.model_copy\(update="):
        PPOConfig().kl_coef = 1.0


def test_every_field_says_what_it_means():
    for name, _, meaning in (line for lines in field_lines().values() for line in lines):
        assert len(meaning) > 20, name


def test_file_and_overrides(tmp_path):
    file = write(tmp_path, "prompts: p.jsonl\nlearning_rate: 1e-4\nsteps: 7\nlora_layers: [1, 2]\n")
    config = load_train_config(file, ["steps=9", "kl_coef=0.5", "lora_layers=3", "run_name=first"])
    assert isinstance(config, TrainConfig)
    assert config.learning_rate == 1e-4  # YAML reads 1e-4 as text; we take it as the number it is
    assert (config.steps, config.kl_coef, config.lora_layers, config.run_name) == (9, 0.5, 3, "first")
    assert config.prompts == str(tmp_path / "p.jsonl")  # relative to the config file


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompts: a.txt\nsteps: 3\nsteps: 4\n", "key 'steps' is given twice, on lines 2 and 3"),
        ("prompts: a.txt\n\tsteps: 3\n", r"config\.yaml:2: not valid YAML"),
        ("prompts: [a\n", "not valid YAML"),
        ("- a\n- b\n", "must be a mapping"),
        ("", "is empty; it must be a mapping"),
        ("steps: 3\n", r"1 error in .*config\.yaml:\n  - prompts is missing"),
        ("prompts: a.txt\nsteps: three\n", "line 2: steps: takes a whole number"),
        ("# first\n\nprompts: a.txt\nstepz: 3\n", "line 4: unknown key 'stepz'"),
        ("prompts: &a [x, x]\nfields: {prompt: *a}\n", "an alias .* is not allowed"),
        ("prompts: " + "[" * 5000, "nested too deeply|not valid YAML"),
        ("prompts: a.txt\nfields: {promt: text}\n", "line 2: fields: 'promt' is not a known column.*mean 'prompt'"),
        ("prompts: a.txt\nrun_name: ../../etc\n", "run_name"),
        ("prompts: a.txt\nvalue_clip: no\n", "value_clip: this key does not take true or false"),
        ("prompts: a.txt\nsteps: yes\n", "steps: this key does not take true or false"),
        ("prompts: a.txt\nsystem_prompt: None\n", "to unset this key, write null"),
        ("prompts: a.txt\nlearning_rate: .inf\n", "learning_rate: .*finite"),
        ("prompts: a.txt\nlora_layers: top\n", "a number of top layers, or a list"),
        ("prompts: a.txt\n? {a: 1}\n: 2\n", "is not a key"),
        ("prompts: a.txt\n3: 4\n", "line 2: 3 is not a key"),
        ("prompts: a.txt\nseed: 20261101123456\n", "seed"),
        ("prompts: a.txt\nrun_name: 2026-02-30\n", "not valid YAML"),
        ("prompts: a.txt\nlr: 3\n", "it is called 'learning_rate' here"),
        ("prompts: a.txt\nsystem_prompt: be kind\n", "set chat_template: true"),
        ("prompts: a.txt\nsteps: 3\nvalue_warmup_steps: 3\n", "leaves no step of 3"),
        ("prompts: a.txt\nnum_eval_prompts: 1\n", "0, or 2 and more"),
        ("prompts: a.txt\nnum_eval_prompts: 1.5\n", "neither a count nor a share"),
        ("prompts: a.txt\nnum_eval_prompts: -0.1\n", "num_eval_prompts: .*greater than or equal to 0"),
    ],
)
def test_bad_files_say_where(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        load_train_config(write(tmp_path, text))


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot read the config .*missing\.yaml: No such file"):
        load_train_config(tmp_path / "missing.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"a: \xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        load_train_config(tmp_path / "binary.yaml")


def test_override_needs_a_key_and_a_value(tmp_path):
    with pytest.raises(InputError, match="'steps' is not of the form key=value"):
        load_train_config(write(tmp_path, "prompts: a.txt\n"), ["steps"])


def test_relative_paths_start_at_the_file(tmp_path):
    (tmp_path / "tldr").mkdir()  # a folder must not hide the rule of the same name
    (tmp_path / "model").mkdir()
    config = load_train_config(write(tmp_path, "prompts: p.txt\nreward: tldr\nmodel_name: model\n"))
    assert (config.reward, config.model_name) == ("tldr", str(tmp_path / "model"))
    config = load_train_config(write(tmp_path, "prompts: p.txt\nreward: mine.py:f\nmodel_name: org/name\n"))
    assert (config.reward, config.model_name) == (f"{tmp_path}/mine.py:f", "org/name")


def test_a_line_is_told_only_for_what_stands_there(tmp_path):
    with pytest.raises(InputError, match=r"and its overrides:(?s:.*)\n  - steps: ") as caught:
        load_train_config(write(tmp_path, "prompts: a.txt\nsteps: 3\nkl_coef: x\n"), ["steps=0"])
    assert "line 3: kl_coef" in str(caught.value)


def test_options_with_dashes_are_explained(tmp_path):
    with pytest.raises(InputError, match="without dashes"):
        load_train_config(write(tmp_path, "prompts: a.txt\n"), ["--steps", "4"])


def test_text_overrides_are_taken_as_they_stand(tmp_path):
    file = write(tmp_path, "prompts: a.txt\nchat_template: true\n")
    config = load_train_config(file, ["system_prompt=Answer: be brief", "run_name=7", "eval_prompts=null"])
    assert (config.system_prompt, config.run_name, config.eval_prompts) == ("Answer: be brief", "7", None)


@pytest.mark.parametrize("name", ["tldr.yaml", "your_reward.yaml"])
def test_example_configs_load(name):
    configs = Path(__file__).parents[2] / "configs"
    config = load_train_config(configs / name)
    prompts = STAGES["ppo"].load(config)
    assert len(prompts.train) >= config.batch_size
    assert all(part.check(Workshop()) for part in config.reward_parts)


def test_example_configs_of_the_supervised_stages_load():
    configs = Path(__file__).parents[2] / "configs"
    demonstrations = STAGES["sft"].load(load_config(SFTConfig, configs / "sft.yaml"))
    judged = load_config(RewardModelConfig, configs / "reward.yaml", ["sft=runs/my-sft"])
    preferences = STAGES["reward"].load(judged)
    assert min(map(len, (demonstrations.train, preferences.train))) >= 100


@pytest.mark.parametrize(
    ("name", "kind", "command"),
    [
        ("sft.yaml", TrainConfig, "sft"),
        ("reward.yaml", SFTConfig, "reward"),
        ("tldr.yaml", SFTConfig, "train"),
        ("pipeline.yaml", TrainConfig, "pipeline"),
    ],
)
def test_a_config_of_another_command_is_recognised(name, kind, command):
    with pytest.raises(ConfigError, match=f"this is a file for `burnish {command}`") as caught:
        load_config(kind, Path(__file__).parents[2] / "configs" / name)
    assert len(caught.value.problems) == 1
    with pytest.raises(ConfigError, match="a file with it is for `burnish sft`"):
        TrainConfig(prompts="p.txt", demonstrations="d.jsonl")
    with pytest.raises(ConfigError, match="did you mean 'model_name'"):
        TrainConfig(prompts="p.txt", model="some/model")


def test_the_example_pipeline_is_the_demo():
    from burnish.config.pipeline_config import load_pipeline_config, pipeline_config
    from burnish.stages.demo import demo_settings

    example = load_pipeline_config(Path(__file__).parents[2] / "configs" / "pipeline.yaml")
    demo = pipeline_config(demo_settings("tldr"), Path("runs/demo"))
    places = {"run_dir", "run_name", "sft", "reward"}  # where runs lie
    for stage in ("sft", "reward_model", "ppo"):
        assert getattr(example, stage).model_dump(exclude=places) == getattr(demo, stage).model_dump(exclude=places)


def test_a_changed_copy_is_checked_like_a_new_config():
    config = PPOConfig(reward=[{"kind": "rule", "name": "tldr"}])
    assert config.model_copy(update={"steps": 7}).steps == 7
    assert config.model_copy().reward_parts == config.reward_parts
    with pytest.raises(ConfigError, match="unknown key 'stesp'; did you mean 'steps'"):
        config.model_copy(update={"stesp": 7})
    with pytest.raises(ConfigError, match=r"steps: takes a whole number \(got 'x'\)"):
        config.model_copy(update={"steps": "x"})


@pytest.mark.parametrize(("key", "value"), [("reward", []), ("prompts", "")])
def test_nothing_is_no_reward_and_no_data(key, value):
    with pytest.raises(ConfigError, match="empty"):
        TrainConfig(**{"prompts": "p.txt"} | {key: value})
