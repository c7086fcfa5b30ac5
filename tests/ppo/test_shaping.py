"""Against over-optimisation: what training makes of scores, and judges that have to agree."""

import pytest
import torch
from torch import tensor

from burnish import ConfigError, InputError, PPOConfig, PPOTrainer, RewardAdjuster, RewardModel, SAPairs
from burnish.data import Prompt
from burnish.maths import combined_scores, overlong
from burnish.models.adapter_files import save_adapter
from burnish.ppo.reward_kl import RewardShaping
from burnish.rewards.ensemble import RewardEnsemble
from tiny import PROMPTS, count_vowels, tiny_config, tiny_model, tiny_tokenizer, tiny_trainer

LENGTHS = tensor([3, 8, 10])


def test_shaping_by_hand():
    score = tensor([1.0, -4.0, 9.0])
    assert RewardShaping()(score, LENGTHS).tolist() == [1, -4, 9]
    assert RewardShaping(clip=2.0)(score, LENGTHS, centre=1.0).tolist() == [0, -2, 2]  # clipped around the centre
    squeezed = RewardShaping(shape="sigmoid")(score, LENGTHS, centre=tensor([1.0, -4.0, 8.0]))
    assert squeezed.tolist() == pytest.approx([0.5, 0.5, 0.7310586])
    # the last 4 of 10 tokens: 3 is free, 8 has used half of them, 10 all
    assert overlong(LENGTHS, 10, 4).tolist() == [0, 0.5, 1]
    shaped = RewardShaping(overlong_tokens=4, overlong_penalty=2.0, longest=10)(score, LENGTHS)
    assert shaped.tolist() == [1, -5, 7]


def test_rewards_of_tokens_are_not_shaped():
    per_token = torch.ones(3, 10)
    assert RewardShaping()(per_token, LENGTHS) is per_token
    for shaping, centre in ((RewardShaping(clip=1.0), 0.0), (RewardShaping(), 0.5)):
        with pytest.raises(InputError, match="this one scores every token"):
            shaping(per_token, LENGTHS, centre)


def test_the_adjuster_shapes_what_is_learned_from():
    pairs = SAPairs(tensor([[True, True], [True, False]]), {"kl": torch.zeros(2, 2)})
    adjusted = RewardAdjuster(shaping=RewardShaping(clip=1.0)).adjust_rewards_with_kl(pairs, [5.0, 0.5], 0.1)
    assert adjusted["reward"].tolist() == [[0, 1], [0.5, 0]]


def test_scores_count_from_the_start_models_and_are_shown_as_they_are():
    trainer = tiny_trainer(reward_against="start", kl_coef=0.0, gamma=1.0)
    first = trainer.ppo_step(PROMPTS)
    assert trainer.centre.start_score == pytest.approx(first["reward"])
    assert first["sa_pairs"]["reward"].sum().item() == pytest.approx(0.0, abs=1e-5)
    other = tiny_trainer(reward_against="start", kl_coef=0.0, gamma=1.0)
    other.generator.agree_on_invocation(PROMPTS)
    other.restore(trainer.state())
    a, b = trainer.ppo_step(PROMPTS), other.ppo_step(PROMPTS)
    assert torch.equal(a["sa_pairs"]["reward"], b["sa_pairs"]["reward"])
    whole = a["sa_pairs"]["reward"].sum(1)
    assert whole.tolist() == pytest.approx([score - first["reward"] for score in a["rewards"]], abs=1e-5)


def test_scores_count_from_each_prompts_reference():
    prompts = [Prompt(p, reference="aei"[: n % 4]) for n, p in enumerate(PROMPTS)]
    trainer = tiny_trainer(count_vowels, reward_against="reference", reward_shape="sigmoid", kl_coef=0.0)
    results = trainer.ppo_step(prompts)
    expected = torch.tensor(results["rewards"]) - torch.tensor(count_vowels(prompts, [p.reference for p in prompts]))
    torch.testing.assert_close(results["sa_pairs"]["reward"].sum(1), expected.sigmoid())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"reward_shape": "sigmoid"}, "set reward_against: start"),
        ({"overlong_tokens": 20, "max_new_tokens": 10}, "overlong_tokens 20 is more than max_new_tokens 10"),
        ({"reward": [{"kind": "ensemble", "paths": ["one"]}]}, "paths"),
    ],
)
def test_shaping_that_means_nothing_is_refused(settings, reason):
    with pytest.raises(ConfigError, match=reason):
        PPOConfig(**settings)


# ----------------------------------------------------------------------------------------------------------- ensembles


def test_combining_by_hand():
    scores = tensor([[1.0, 5.0], [3.0, 5.0]])
    assert combined_scores(scores, "mean", 9.0).tolist() == [2, 5]
    assert combined_scores(scores, "worst", 9.0).tolist() == [1, 5]
    assert combined_scores(scores, "cautious", 0.5).tolist() == [1.5, 5]  # the variance of 1 and 3 is 1


@pytest.fixture
def judges(tmp_path):
    """Three reward models with random weights, in folders of their own."""
    trainer = tiny_trainer()
    trainer.generator.agree_on_invocation(PROMPTS)
    trainer.setup.add_adapter("reward")
    folders = []
    for seed in range(3):
        model = RewardModel(trainer.base, trainer.setup.encoder.encode, "reward")
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
        save_adapter(model, tmp_path / f"judge_{seed}")
        folders.append(str(tmp_path / f"judge_{seed}"))
    return folders


@pytest.mark.parametrize("combine", ["mean", "worst", "cautious"])
def test_an_ensemble_is_one_part_of_the_reward(judges, combine):
    def trained_on(reward):
        return PPOTrainer(tiny_config(reward=reward), None, tiny_model(), tiny_tokenizer())

    part = {"kind": "ensemble", "paths": judges, "combine": combine, "caution": 2.0}
    trainer = trained_on([part])
    assert isinstance(trainer.reward_computer.parts[0].reward, RewardEnsemble)
    assert len(trainer.reward_computer.models) == 3
    results = trainer.ppo_step(PROMPTS)
    alone = trained_on([{"kind": "model", "path": path} for path in judges])
    alone.generator.agree_on_invocation(PROMPTS)
    by_part = alone.reward_computer.compute_parts(PROMPTS, results["generated_texts"], results["sa_pairs"])
    scores = torch.tensor(list(by_part.values()))
    expected = combined_scores(scores, combine, 2.0)
    assert results["rewards"] == pytest.approx(expected.tolist(), abs=1e-4)
    spread = results["reward_parts"]["ensemble disagreement"]
    assert spread == pytest.approx(scores.std(0, correction=0).mean().item(), abs=1e-4)
    assert spread > 0.01
