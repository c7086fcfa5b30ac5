"""The contract of the founding documents, executed: every name, with the inputs and outputs that it promises."""

import pytest
import torch

import burnish
from burnish import (
    ExperienceBuffer,
    GAEAdvantage,
    KLDivergence,
    PPOConfig,
    PPOTrainer,
    ReturnCalculator,
    RewardAdjuster,
    RewardComputer,
    TDError,
)
from tiny import PROMPTS, count_vowels, tiny_config, tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def trainer():
    return PPOTrainer(tiny_config(), count_vowels, tiny_model(), tiny_tokenizer())


def test_config_has_exactly_the_promised_defaults():
    promised = {
        "model_name": "Qwen/Qwen3-0.6B-Base",
        "lora_r": 16,
        "lora_alpha": 32,
        "lora_dropout": 0.1,
        "learning_rate": 1e-5,
        "value_learning_rate": 1e-4,
        "batch_size": 32,
        "max_new_tokens": 10,
        "gamma": 0.99,
        "lam": 0.95,
        "kl_coef": 0.1,
        "clip_epsilon": 0.2,
        "temperature": 1.0,
        "top_k": 50,
        "top_p": 0.95,
    }
    config = PPOConfig()
    assert {name: getattr(config, name) for name in promised} == promised


def test_every_promised_class_exists():
    names = """PPOConfig SFTModel PolicyModel RewardModel ValueModel SequenceGenerator RewardComputer ValueAdder
    ModelTrainer PPOTrainer KLDivergence RewardAdjuster TDError GAEAdvantage ReturnCalculator ExperienceBuffer
    TokenAttributionExtractor SAPairBuilder BaseSetup"""
    for name in names.split():
        assert isinstance(getattr(burnish, name), type), name


def test_ppo_step_gives_what_the_quick_start_prints(trainer):
    results = trainer.ppo_step(PROMPTS[:2])
    assert len(results["generated_texts"]) == len(results["rewards"]) == 2
    assert all(isinstance(t, str) for t in results["generated_texts"])
    assert all(isinstance(r, float) for r in results["rewards"])
    assert isinstance(results["value_loss"], float)
    assert isinstance(results["policy_loss"], float)
    assert results["value_loss"] > 0


def test_the_whole_line_works_on_plain_lists_of_dicts_and_gives_the_same_numbers(trainer):
    """generate -> rewards -> KL -> adjusted -> values -> TD -> GAE -> returns, once as table and once as rows."""
    table, texts = trainer.generator.generate_sequences(PROMPTS, torch.Generator().manual_seed(3))
    rewards = trainer.reward_computer.compute_rewards(PROMPTS, texts)
    assert all(isinstance(r, float) for r in rewards)

    rows = table.to_dicts()
    assert isinstance(rows, list)
    assert {"state", "action", "logprob_policy", "logprob_ref"} <= set(rows[0])
    for step in (
        lambda p: KLDivergence().add_kl_to_sa_pairs(p),
        lambda p: RewardAdjuster().adjust_rewards_with_kl(p, rewards, kl_coef=0.1),
        lambda p: trainer.value_adder.add_values_to_sa_pairs(p),
        lambda p: TDError(0.99).compute_td_errors(p),
        lambda p: GAEAdvantage().compute_gae_advantages(p, gamma=0.99, lam=0.95),
        lambda p: ReturnCalculator(0.99).add_reward_to_go(p),
    ):
        table = step(table)
        rows = step(rows).to_dicts()
    assert {"kl", "reward", "value", "td_error", "advantage", "return"} <= set(rows[0])
    for ours, theirs in zip(table, rows, strict=True):
        assert ours.keys() == theirs.keys()
        for key in ("kl", "reward", "value", "td_error", "advantage", "return"):
            assert ours[key] == pytest.approx(theirs[key], abs=1e-5), key


def test_training_on_plain_rows_gives_the_losses_of_the_table():
    losses = []
    for as_rows in (False, True):
        trainer = PPOTrainer(tiny_config(), count_vowels, tiny_model(), tiny_tokenizer())
        pairs = trainer.ppo_step(PROMPTS)["sa_pairs"]
        given = pairs.to_dicts() if as_rows else pairs
        losses.append((trainer.model_trainer.train_value_model(given), trainer.model_trainer.train_policy_model(given)))
    assert all(isinstance(loss, float) for pair in losses for loss in pair)
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_kl_row_by_row():
    pairs = KLDivergence().add_kl_to_sa_pairs([{"logprob_policy": -1.0, "logprob_ref": -1.5}])
    assert pairs[0]["kl"] == pytest.approx(0.5)


def test_adjusted_reward_row_by_row():
    # two tokens with kl 1 and 2, score 3, coefficient 0.5: -0.5, then -1 + 3
    pairs = RewardAdjuster().adjust_rewards_with_kl([{"kl": 1.0}, {"kl": 2.0}], [3.0], 0.5)
    assert [row["reward"] for row in pairs] == pytest.approx([-0.5, 2.0])


def test_td_gae_and_returns_row_by_row():
    # gamma 1: deltas 0 + 2 - 1 = 1 and 3 + 0 - 2 = 1; lam 0.5: 1.5, 1; returns 3, 3
    rows = [{"reward": 0.0, "value": 1.0}, {"reward": 3.0, "value": 2.0}]
    pairs = TDError(1.0).compute_td_errors(rows)
    pairs = GAEAdvantage().compute_gae_advantages(pairs, gamma=1.0, lam=0.5)
    pairs = ReturnCalculator(1.0).add_reward_to_go(pairs)
    assert [row["td_error"] for row in pairs] == pytest.approx([1.0, 1.0])
    assert [row["advantage"] for row in pairs] == pytest.approx([1.5, 1.0])
    assert [row["return"] for row in pairs] == pytest.approx([3.0, 3.0])


def test_gae_groups_pairs_by_prompt():
    rows = [{"prompt_id": p, "td_error": 1.0} for p in (0, 0, 1)]
    pairs = GAEAdvantage(gamma=1.0, lam=1.0).compute_gae_advantages(rows)
    assert [row["advantage"] for row in pairs] == [2.0, 1.0, 1.0]


def test_reward_computer_takes_lists_of_text():
    assert RewardComputer(count_vowels).compute_rewards(["p", "q"], ["aa", "xa"]) == [1.0, 0.5]


def test_buffer_takes_plain_rows():
    buffer = ExperienceBuffer()
    buffer.store([{"prompt_id": p, "advantage": float(p)} for p in (0, 1, 2)])
    assert len(buffer) == 3
    assert buffer.nbytes > 0
