"""`burnish demo`: its tasks with every recipe, as far as nothing has to be computed."""

from importlib.resources import as_file, files
from types import SimpleNamespace

import pytest
from rich.console import Console

from burnish.config import load_train_config
from burnish.config.pipeline_config import load_pipeline_config
from burnish.config.recipes import RECIPES
from burnish.errors import ConfigError
from burnish.stages import demo


@pytest.fixture
def ppo_of(monkeypatch):
    """The config that a demo's PPO would be run with."""
    monkeypatch.setattr(demo, "run_pipeline", lambda config, console: config.ppo)
    stage = SimpleNamespace(run=lambda config, console: config)
    monkeypatch.setitem(demo.STAGES, "ppo", stage)

    def run(*given, **more):
        return demo.run_demo(Console(quiet=True), *given, **more)

    return run


@pytest.mark.parametrize("task", demo.TASKS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_can_be_seen(ppo_of, task, recipe):
    config = ppo_of(task, steps=3, recipe=recipe)
    assert (config.recipe, config.steps, config.gamma) == (recipe, 3, 1.0)
    assert config.has_critic == (recipe in ("ppo", "tether"))
    assert config.value_warmup_epochs == (8 if config.has_critic else None)
    assert ppo_of(task, steps=1, recipe=recipe).value_warmup_steps == 0  # or there would be no step left


def test_without_a_recipe_it_is_what_the_files_say(ppo_of):
    texts = files("burnish.data") / "texts"
    with as_file(texts / "demo.yaml") as tldr, as_file(texts / "sentiment.yaml") as sentiment:
        expected = load_pipeline_config(tldr, ["model.seed=4"]).ppo
        own = ppo_of("tldr", seed=4)
        same = own.model_fields.keys() - {"run_dir", "sft", "reward"}  # which name the folder
        assert all(getattr(own, key) == getattr(expected, key) for key in same)
        assert ppo_of("sentiment", seed=4) == load_train_config(sentiment, ["seed=4"])


def test_a_recipe_that_does_not_exist_is_told(ppo_of):
    with pytest.raises(ConfigError, match="recipe"):
        ppo_of("tldr", recipe="rlo")
