"""The trainer: it learns, repeats itself exactly, and refuses what it cannot use."""

import pytest
import torch

from burnish import InputError, KLController, PPOTrainer, RewardAdjuster
from burnish.ppo import memory_report
from burnish.ppo.meanings import METRICS
from tiny import PROMPTS, count_vowels, perturb, tiny_config, tiny_model, tiny_tokenizer, tiny_trainer


@pytest.mark.parametrize("scope", ["response", "sequence"])
def test_a_toy_reward_rises_clearly(scope):
    """Share of vowels among the bytes written: about 0.05 at the start."""
    trainer = tiny_trainer(
        adapter_scope=scope,
        steps=40,
        batch_size=32,
        epochs=3,
        learning_rate=1e-2,
        value_learning_rate=1e-2,
        kl_coef=0.01,
    )
    rewards = [r["reward"] for r in trainer.train(PROMPTS)]
    start, end = sum(rewards[:4]) / 4, sum(rewards[-4:]) / 4
    assert start < 0.2
    assert end > start + 0.3


def test_per_token_rewards_reach_their_tokens_and_are_learned():
    """One point for each token that is a letter, given where it stands."""

    def letters(prompts, responses, tokens):
        return [[float(t.isascii() and t.isalpha()) for t in response] for response in tokens]

    trainer = tiny_trainer(letters, steps=25, batch_size=32, learning_rate=1e-2, kl_coef=0.0, gamma=1.0)
    first = trainer.ppo_step(PROMPTS)
    for number, points in enumerate(first["rewards"]):
        rows = first["sa_pairs"].rows_of(number)
        assert [row["reward"] for row in rows] == points
        decoded = [trainer.base.tokenizer.decode([row["action"]]) for row in rows]
        assert points == [float(t.isascii() and t.isalpha()) for t in decoded]
    history = trainer.train(PROMPTS)
    assert history[-1]["reward"] > first["reward"] + 1.0


def test_same_seed_gives_the_same_run():
    runs = []
    for _ in range(2):
        history = tiny_trainer(steps=3).train(PROMPTS)
        runs.append([{k: v for k, v in r.items() if not k.startswith("seconds")} for r in history])
    assert runs[0] == runs[1]


def test_another_seed_gives_another_run():
    texts = [tiny_trainer(steps=1, seed=s).train(PROMPTS)[0]["generated_texts"] for s in (0, 1)]
    assert texts[0] != texts[1]


def test_prompts_of_a_step_follow_from_seed_and_step():
    trainer = tiny_trainer(batch_size=6)
    one_pass = [p for step in range(4) for p in trainer.prompts_of_step(PROMPTS, step)]
    assert sorted(one_pass) == sorted(PROMPTS * 3)  # 24 = three whole rounds of eight
    assert one_pass[:8] != one_pass[8:16]
    assert trainer.prompts_of_step(PROMPTS, 2) == tiny_trainer(batch_size=6).prompts_of_step(PROMPTS, 2)


def test_every_metric_of_a_step_is_documented_and_finite():
    results = tiny_trainer().ppo_step(PROMPTS)
    numbers = {k for k, v in results.items() if isinstance(v, int | float)}
    elsewhere = {
        "reward_parts",
        "reward_costs",
        "sampler_gap",
        "flat_groups",
        "group_explained",
        "tether_weight",
        "seconds_by_process",
        "seconds_waited",
        "weight_cut",
    }  # of half precision, groups, tether, several processes, servers
    assert numbers | elsewhere == set(METRICS)
    assert all(abs(results[k]) < float("inf") for k in numbers)
    assert results["entropy"] > 0
    assert results["kl"] >= 0


def test_steps_beyond_the_schedule_are_refused():
    trainer = tiny_trainer(steps=1)
    trainer.ppo_step(PROMPTS)
    with pytest.raises(InputError, match="all 1 steps"):
        trainer.ppo_step(PROMPTS)
    trainer = tiny_trainer(steps=1, lr_schedule="constant")
    for _ in range(2):
        assert trainer.ppo_step(PROMPTS)["learning_rate"] == 1e-3


def test_adaptive_kl_coefficient_moves_towards_its_target():
    high = KLController(0.1, target=1.0, horizon=100)
    high.update(kl_per_response=5.0, num_responses=10)
    assert high.kl_coef == pytest.approx(0.102)
    trainer = tiny_trainer(adaptive_kl_target=5.0, adaptive_kl_horizon=80, kl_coef=0.1, top_k=0, top_p=1.0)
    trainer.ppo_step(PROMPTS)  # KL 0: far below the target, so the price falls by 20 % of 8 / 80
    assert trainer.kl_coef == pytest.approx(0.098)


def test_the_kl_that_the_coefficient_follows_is_the_one_in_the_metrics():
    """The exact KL of a whole response, to the whole reference: with truncation the charged one is another number."""

    def first_step(target):
        trainer = tiny_trainer(adaptive_kl_target=target, adaptive_kl_horizon=80, kl_coef=0.1, top_k=20, top_p=0.9)
        perturb(trainer)
        return trainer, trainer.ppo_step(PROMPTS)

    _, step = first_step(None)
    exact = step["sa_pairs"]["exact_kl"].sum(1).mean().item()
    assert step["kl"] == pytest.approx(exact, rel=1e-5)
    trainer, _ = first_step(exact / 1.1)  # a tenth above its target: the price rises by 10 % of 8 / 80
    assert trainer.kl_coef == pytest.approx(0.1 * (1 + 0.1 * 8 / 80))


def test_unfinished_responses_pay_the_stop_token_penalty():
    trainer = tiny_trainer(stop_token_penalty=2.0)
    pairs, _ = trainer.generator.generate_sequences(PROMPTS, torch.Generator().manual_seed(0))
    pairs = trainer.kl_divergence.add_kl_to_sa_pairs(pairs)
    for given in (pairs, pairs.to_dicts()):
        paid = trainer.reward_adjuster.adjust_rewards_with_kl(given, [0.0] * 8, 0.0)["reward"].sum(1)
        assert paid.tolist() == [0.0 if f else -2.0 for f in pairs.finished.tolist()]
    assert not pairs.finished.all()


def test_scores_may_be_a_tensor():
    rows = [{"prompt_id": i, "kl": 0.0} for i in range(2)]
    reward = RewardAdjuster().adjust_rewards_with_kl(rows, torch.tensor([1.0, 2.0]), 0.0)["reward"]
    assert reward.tolist() == [[1.0], [2.0]]


def test_whitened_rewards_keep_their_mean():
    rows = [{"prompt_id": i, "kl": 0.0} for i in range(4)]
    reward = RewardAdjuster(whiten_rewards=True).adjust_rewards_with_kl(rows, [1.0, 2.0, 3.0, 6.0], 0.0)["reward"]
    # mean 3, sd sqrt(3.5): 3 - 2 / 1.870829 = 1.930955 ...
    torch.testing.assert_close(reward[:, 0], torch.tensor([1.930955, 2.465478, 3.0, 4.603567]))


def test_gae_value_target_is_advantage_plus_value():
    pairs = tiny_trainer(value_target="gae").ppo_step(PROMPTS)["sa_pairs"]
    torch.testing.assert_close(pairs["returns"], pairs["advantage"] + pairs["value"])


def test_memory_report_has_a_line_per_role():
    roles = {role: mb for role, mb, _ in tiny_trainer().memory_report()}
    assert set(roles) == {"base", "policy", "value", "reward"}
    trainable = sum(p.numel() for p in tiny_trainer().policy.parameters())
    assert roles["policy"] == pytest.approx(4 * 4 * trainable / 2**20)


def test_memory_report_on_prompts_tells_the_work_and_the_peak():
    trainer = tiny_trainer()
    report = {name: mb for name, mb, _ in trainer.memory_report(PROMPTS)}
    assert set(report) == {"base", "policy", "value", "reward", "prompts", "rollout", "training", "at its peak"}
    passes = [
        dict(r[:2] for r in tiny_trainer(micro_batch_size=n).memory_report(PROMPTS))["training"] for n in (2, 4, 8)
    ]
    assert passes[0] < passes[1] < passes[2] == report["training"]  # the batch is 8
    assert passes[2] - passes[1] == pytest.approx(2 * (passes[1] - passes[0]))  # linear in its sequences
    assert "prompts" not in dict(r[:2] for r in tiny_trainer(adapter_scope="sequence").memory_report(PROMPTS))


def test_prompts_that_were_read_already_are_not_forecast_again(monkeypatch):
    trainer = tiny_trainer()
    trainer.generator.agree_on_invocation(PROMPTS)
    monkeypatch.setattr(memory_report, "held_bytes", lambda: 0)
    to_come = dict(r[:2] for r in trainer.memory_report(PROMPTS))["at its peak"]
    trainer.ppo_step(PROMPTS)
    assert trainer.base.prompt_cache.nbytes
    still_to_come = dict(r[:2] for r in trainer.memory_report(PROMPTS))["at its peak"]
    assert to_come - still_to_come == pytest.approx(memory_report.HOLES * trainer.base.prompt_cache.nbytes / 2**20)


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "at least one string"),
        ("a string", "at least one string"),
        (["fine:", ""], "prompt 1 is empty"),
        (["fine:", "  \n\t "], "prompt 1 is empty"),
        (["fine:", None], "prompt 1 is None, of type NoneType"),
        (["fine:", 7], "prompt 1 is 7, of type int"),
        (["fine:", "x" * 251], r"prompt 1 has 251 tokens; with max_new_tokens 6 .* leaves room for 250"),
    ],
)
def test_bad_prompts_are_refused_by_number(prompts, message):
    with pytest.raises(InputError, match=message):
        tiny_trainer().ppo_step(prompts)


def test_the_longest_prompt_that_fits_works():
    tiny_trainer().ppo_step(["x" * 250])


def test_all_prompts_are_checked_before_the_first_step():
    seen = []
    with pytest.raises(InputError, match="prompt 8 is empty"):
        tiny_trainer().train([*PROMPTS, ""], on_step=seen.append)
    assert not seen


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1.0, 1.0], "returned 2 values for 8 responses"),
        (None, "returned None; it must return a list"),
        ("12345678", "must return a list"),
        (dict.fromkeys(range(8), 1.0), "must return a list"),
        ([1.0] + [float("nan")] * 7, "response 1 is nan; a reward must be finite"),
        ([1.0] + [float("inf")] * 7, "response 1 is inf; a reward must be finite"),
        ([1.0] + [None] * 7, "response 1 is None, not a number"),
        ([1.0] + ["good"] * 7, "response 1 is 'good', not a number"),
        ([[1.0]] * 8, r"has [2-6] tokens but 1 rewards"),
        ([1.0] + [[float("nan")]] * 7, "response 1, token 0 is nan"),
    ],
)
@pytest.mark.filterwarnings("ignore:response . is left out")
def test_rewards_that_mostly_fail_are_refused_by_response(returned, message):
    def judge(prompts, responses):
        return returned

    trainer = tiny_trainer(judge)
    before = [p.clone() for p in trainer.policy.parameters()]
    with pytest.raises(InputError, match=message):
        trainer.ppo_step(PROMPTS)
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.policy.parameters(), strict=True))


@pytest.mark.parametrize(
    "returned", [torch.ones(8), torch.ones(8).numpy(), [torch.tensor(1.0)] * 8, tuple([1] * 8), torch.ones(8).double()]
)
def test_rewards_may_be_tensors_and_arrays(returned):
    assert tiny_trainer(lambda prompts, responses: returned).ppo_step(PROMPTS)["rewards"] == [1.0] * 8


@pytest.mark.filterwarnings("ignore:response . is left out")
def test_a_reward_that_raises_is_named():
    def judge(prompts, responses):
        return 1 / 0

    with pytest.raises(InputError, match=r"reward judge failed with ZeroDivisionError.*test_ppo_trainer\.py:\d+"):
        tiny_trainer(judge).ppo_step(PROMPTS)


def test_model_and_tokenizer_come_together():
    with pytest.raises(InputError, match="both a model and its tokenizer"):
        PPOTrainer(tiny_config(), count_vowels, model=tiny_model())


def test_chat_template_needs_one():
    with pytest.raises(InputError, match="chat_template: false"):
        PPOTrainer(tiny_config(chat_template=True), count_vowels, tiny_model(), tiny_tokenizer(chat=False))
