"""Advantages from other responses, by hand and in a step; and what a recipe means."""

import pytest
import torch
from torch import tensor

from burnish import ConfigError, InputError, PPOConfig, SAPairs
from burnish.config.recipes import RECIPES
from burnish.data import Prompt
from burnish.ppo.baselines import BatchMean, GroupMean, LeaveOneOut, Tether
from burnish.ppo.metrics import _flat_groups, _group_explained
from tiny import PROMPTS, count_vowels, tiny_config, tiny_trainer

MASK = tensor([[True, True], [True, False], [True, True], [True, True]])
REWARD = tensor([[0.0, 1.0], [4.0, 0.0], [-0.5, 2.5], [0.0, 0.0]])  # whole: 1, 4, 2, 0


def table(**columns):
    return SAPairs(MASK, {"reward": REWARD, **columns}, prompt_numbers=[0, 0, 1, 1])


def test_leave_one_out_by_hand():
    advantage = LeaveOneOut().compute_advantages(table())["advantage"]
    assert advantage.tolist() == [[-3, -3], [3, 0], [2, 2], [-2, -2]]  # of a response the same for every real token


def test_the_groups_mean_by_hand():
    assert GroupMean().compute_advantages(table())["advantage"][:, 0].tolist() == [-1.5, 1.5, 1, -1]


def test_the_groups_spread_by_hand():
    # standard deviations of 1, 4 and of 2, 0: 4.5 ** 0.5 and 2 ** 0.5
    advantage = GroupMean(by_spread=True).compute_advantages(table())["advantage"][:, 0]
    half = 0.5**0.5
    assert advantage.tolist() == pytest.approx([-half, half, half, -half], abs=1e-3)
    flat = SAPairs(MASK, {"reward": torch.ones(4, 2) * MASK}, prompt_numbers=[0, 1, 0, 0])
    assert GroupMean(by_spread=True).compute_advantages(flat)["advantage"][1, 0] == 0  # alone: nothing to compare


def test_the_batchs_mean_by_hand():
    # rewards to come at gamma 1/2: 0.5, 1 | 4 | 0.75, 2.5 | 0, 0; their mean is 8.75 / 7 = 1.25
    advantage = BatchMean(0.5).compute_advantages(table())["advantage"]
    assert advantage.tolist() == [[-0.75, -0.25], [2.75, 0], [-0.5, 1.25], [-1.25, -1.25]]


def test_tether_by_hand():
    to_come = tensor([[1.0, 1.0], [4.0, 0.0], [2.0, 2.5], [0.0, 0.0]])
    pairs = table(
        value=to_come, returns=to_come + 9
    )  # a critic that knows everything; what it learns from is no matter
    tether = Tether()
    # its weight is 0 at first: leave-one-out means are 4, 1, 0, 2
    assert tether.compute_advantages(pairs)["advantage"].tolist() == [[-3, -3], [3, 0], [2, 2.5], [-2, -2]]
    assert tether.weight == pytest.approx(0.05)
    second = tether.compute_advantages(pairs)["advantage"]
    assert second[0, 0] == pytest.approx(-3 * 0.95)
    assert tether.weight == pytest.approx(0.05 + 0.95 * 0.05)


def test_tether_discounts_both_sides_alike_and_asks_the_critic_where_a_response_is_alone():
    mask = torch.ones(3, 2).bool()
    reward = tensor([[0.0, 2.0], [0.0, 6.0], [0.0, 8.0]])
    pairs = SAPairs(mask, {"reward": reward, "value": torch.full((3, 2), 1.0)}, prompt_numbers=[0, 0, 1])
    tether = Tether(gamma=0.5)
    # to come: 1, 2 | 3, 6 | 4, 8. The others' first: 3 and 1. The third has only the critic.
    assert tether.compute_advantages(pairs)["advantage"].tolist() == [[-2, -1], [2, 5], [3, 7]]
    # fitted on the first two: errors -2, -1, 2, 5 on steps -2, -2, 0, 0: (4 + 2) / 8
    assert tether.weight == pytest.approx(0.05 * 0.75)
    assert tether.used == 0


GROUPED = {"responses_per_prompt": 4, "gamma": 1.0}


@pytest.mark.parametrize("baseline", ["leave_one_out", "group_mean", "group_normalised", "batch_mean"])
def test_without_a_critic_none_is_built_and_the_step_is_the_same(baseline):
    trainer = tiny_trainer(baseline=baseline, **GROUPED)
    assert trainer.value_model is None
    assert set(trainer.base.peft_model.peft_config) == {"policy"}
    results = trainer.ppo_step(trainer.prompts_of_step(PROMPTS, 0))
    assert results["prompts"][0] == results["prompts"][3] != results["prompts"][4]
    assert results["policy_updates"] == 2
    assert results["first_ratio_error"] < 1e-4
    assert "value_loss" not in results
    pairs = results["sa_pairs"]
    assert list(pairs.groups) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert pairs.context.prefix.shape[2] == 2


def test_prompts_of_a_step_are_each_repeated_and_each_comes_once_a_round():
    trainer = tiny_trainer(**GROUPED)
    steps = [trainer.prompts_of_step(PROMPTS, step) for step in range(len(PROMPTS) // 2)]
    assert all(len(step) == 8 for step in steps)
    assert sorted(p for step in steps for p in step[::4]) == sorted(PROMPTS)


def test_a_mini_batch_holds_whole_groups():
    trainer = tiny_trainer(baseline="leave_one_out", responses_per_prompt=2, mini_batch_size=4, gamma=1.0)
    results = trainer.ppo_step(trainer.prompts_of_step(PROMPTS, 0))
    batches = list(trainer.experience_buffer.mini_batches(4, responses_per_prompt=2))
    assert len(batches) == 2
    for batch in batches:
        (items,) = batch.items
        groups = list(items.take(list(range(4))).groups)
        assert sorted(groups.count(g) for g in set(groups)) == [2, 2]
    assert results["policy_updates"] == 4
    trainer.experience_buffer.tables = [results["sa_pairs"].select(torch.arange(7))]  # one of them could not be scored
    (whole,) = trainer.experience_buffer.mini_batches(None, responses_per_prompt=2)
    assert len(whole.items[0].sizes) == 7


def test_groups_learn_what_is_rewarded():
    trainer = tiny_trainer(recipe="rloo", batch_size=32, epochs=3, steps=30, learning_rate=1e-2, kl_coef=0.01)
    rewards = [r["reward"] for r in trainer.train(PROMPTS)]
    assert sum(rewards[-4:]) / 4 > sum(rewards[:4]) / 4 + 0.3


def test_tethers_weight_is_part_of_the_state():
    def trainer():
        return tiny_trainer(recipe="tether", value_learning_rate=1e-2)

    one, other = trainer(), trainer()
    for step in range(3):
        results = one.ppo_step(one.prompts_of_step(PROMPTS, step))
    assert 0 < results["tether_weight"] < 0.15
    other.generator.agree_on_invocation(PROMPTS)
    other.restore(one.state())
    a, b = (t.ppo_step(t.prompts_of_step(PROMPTS, 3)) for t in (one, other))
    assert a["policy_loss"] == b["policy_loss"]
    assert torch.equal(a["sa_pairs"]["advantage"], b["sa_pairs"]["advantage"])


# ------------------------------------------------------------------------------------------------------------- recipes


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_makes_a_config_that_can_be_trained(recipe):
    config = tiny_config(recipe=recipe, kl_coef=0.05)
    for key, value in RECIPES[recipe].keys.items():
        assert getattr(config, key) == (0.05 if key == "kl_coef" else value)
    again = PPOConfig(**config.model_dump())
    assert again == config
    trainer = tiny_trainer(recipe=recipe)
    results = trainer.ppo_step(trainer.prompts_of_step(PROMPTS, 0))
    assert (trainer.value_model is None) == (recipe not in ("ppo", "tether"))
    assert results["policy_updates"] > 0


def test_what_is_given_wins_over_the_recipe():
    config = PPOConfig(recipe="rloo", responses_per_prompt=8)
    assert (config.baseline, config.responses_per_prompt, config.gamma) == ("leave_one_out", 8, 1.0)
    assert PPOConfig().model_copy(update={"recipe": "tether", "gamma": 0.9}).gamma == 0.9


def test_a_copy_with_another_recipe_keeps_nothing_of_the_one_before():
    grpo = PPOConfig(recipe="grpo", kl_coef=0.2)
    rloo = grpo.model_copy(update={"recipe": "rloo"})
    assert rloo == PPOConfig(recipe="rloo", kl_coef=0.2)
    assert rloo.model_copy(update={"recipe": "ppo"}) == PPOConfig(kl_coef=0.2)


def test_what_the_other_responses_explain_by_hand():
    group = tensor([0, 0, 1, 1, 2])
    # Others' scores 2, 0, 12, 10; errors -2, 2, -2, 2, variance 4. Scores 0, 2, 10, 12: variance 26. 2 is alone.
    assert _group_explained(tensor([0.0, 2.0, 10.0, 12.0, 99.0]), group) == pytest.approx(1 - 4 / 26)
    # A prompt says nothing: others' 1, 0, 1, 0, errors 1, variance 1 of 0.25.
    assert _group_explained(tensor([0.0, 1.0, 0.0, 1.0, 7.0]), group) == pytest.approx(1 - 1 / 0.25)


def test_flat_groups_by_hand():
    group = tensor([0, 0, 1, 1, 2])
    assert _flat_groups(tensor([1.0, 1.0, 2.0, 3.0, 5.0]), group) == 0.5  # one of the two groups of several


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"baseline": "leave_one_out"}, "compares responses to the same prompt, and there is one"),
        ({"responses_per_prompt": 5}, "batch_size 32 is not a multiple of responses_per_prompt 5; try batch_size 30"),
        ({"recipe": "rloo", "lam": 0.9}, "lam belongs to GAE, and baseline is leave_one_out"),
        ({"recipe": "tether", "lam": 0.9}, "lam belongs to GAE"),
        (
            {"recipe": "rloo", "value_warmup_steps": 2, "value_range": (0, 1)},
            "leave out value_range, value_warmup_steps",
        ),
        ({"recipe": "rloo", "value_epochs": 4}, "leave_one_out has no value model; leave out value_epochs"),
        (
            {"recipe": "reinforce++", "value_learning_rate": 1e-4, "value_clip": None, "value_target": "gae"},
            "leave out value_target, value_learning_rate, value_clip",  # the default too: it means nothing here
        ),
        ({"value_warmup_epochs": 8}, "value_warmup_epochs without value_warmup_steps warms up nothing"),
        ({"overlong_penalty": 2.0}, "overlong_penalty without overlong_tokens is never charged"),
        ({"responses_per_prompt": 8, "mini_batch_size": 4}, "mini_batch_size 4 would tear apart the 8 responses"),
        ({"value_lam": 0.5}, "value_lam needs value_target: gae"),
        ({"value_range": (1, 0)}, "not of the form"),
        ({"policy_loss": "dppo", "dual_clip": 3}, "dual_clip bounds policy_loss: clip, not dppo"),
        ({"recipe": "rlooo"}, "recipe"),
        ({"recipe": "rloo", "gamma": 0.9}, "compares whole returns, which nothing discounts; set gamma: 1"),
        ({"policy_loss": "sequence"}, "all its tokens need the same advantage"),
    ],
)
def test_combinations_that_mean_nothing_are_refused(settings, reason):
    with pytest.raises(ConfigError, match=reason):
        PPOConfig(**settings)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_config_of_a_run_has_every_key_and_loads(recipe):
    """Also one that was made while idle keys were not refused."""
    whole = PPOConfig(recipe=recipe).model_dump(mode="json")
    assert PPOConfig(**whole).model_dump(mode="json") == whole
    idle = {"value_learning_rate": 1e-3, "value_epochs": 3, "value_warmup_epochs": 8, "overlong_penalty": 2.0}
    assert PPOConfig(**whole | idle).model_copy(update={"steps": 7}).value_epochs == 3


# ---------------------------------------------------------------------------------------------------------- the critic


def test_a_bounded_critic_starts_in_the_middle_and_stays_within():
    trainer = tiny_trainer(value_range=(0.0, 4.0), value_learning_rate=0.5)
    first = trainer.ppo_step(PROMPTS)
    assert first["value"] == pytest.approx(2.0)
    second = trainer.ppo_step(PROMPTS)
    values = second["sa_pairs"]["value"][second["sa_pairs"].mask]
    assert values.min() >= 0
    assert values.max() <= 4
    assert values.std() > 0.01


def test_the_warm_up_trains_the_critic_alone_longer_and_unclipped():
    settings = {"value_warmup_steps": 1, "value_warmup_epochs": 7, "value_epochs": 3, "epochs": 1, "value_clip": 1e-6}
    trainer = tiny_trainer(value_learning_rate=1e-2, **settings)
    before = [p.clone() for p in trainer.policy.parameters()]
    first = trainer.ppo_step(PROMPTS)
    assert (first["value_updates"], first["policy_updates"]) == (7, 0)
    assert first["value_clip_fraction"] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.policy.parameters(), strict=True))
    second = trainer.ppo_step(PROMPTS)
    assert (second["value_updates"], second["policy_updates"]) == (10, 1)
    assert second["value_clip_fraction"] > 0


def test_a_critic_that_reads_the_reference_knows_what_the_prompt_does_not_say():
    """The reward follows from the reference; the prompts are all alike."""
    prompts = [Prompt(f"prompt {'x' * n}:", reference=f"{'good' if n % 2 else 'bad'} {n}") for n in range(8)]

    def reward(prompts, responses):
        return [1.0 if p.reference.startswith("good") else -1.0 for p in prompts]

    trainer = tiny_trainer(reward, value_reads_reference=True, value_learning_rate=5e-3, value_epochs=8, gamma=1.0)
    for _ in range(6):
        results = trainer.ppo_step(prompts)
    assert results["explained_variance"] > 0.5
    pairs = results["sa_pairs"]
    assert pairs.critic_context.prompt_ids.shape[1] > pairs.prompt_ids.shape[1]
    assert trainer.experience_buffer.nbytes > pairs.nbytes + pairs.context.nbytes


@pytest.mark.parametrize("key", [{"value_reads_reference": True}, {"reward_against": "reference"}])
def test_prompts_without_a_reference_are_refused_where_one_is_needed(key):
    with pytest.raises(InputError, match=f"{next(iter(key))}.* needs a reference answer, and 8 prompts .* have none"):
        tiny_trainer(count_vowels, **key).train(PROMPTS)
