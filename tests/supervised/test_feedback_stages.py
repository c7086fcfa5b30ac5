"""SFT and reward model: they learn what the data says, and PPO stands on them."""

import math
import random

import pytest
import torch

from burnish import InputError, PPOTrainer
from burnish.config import RewardModelConfig, SFTConfig
from burnish.data import Demonstration, Preference, Scored
from burnish.evaluation.intervals import correlation_interval, share_interval
from burnish.models.adapter_files import save_to_run
from burnish.runs.run import Run
from burnish.supervised.epochs import _ramp
from burnish.supervised.reward_report import reward_report, score_report
from burnish.supervised.reward_trainer import RewardTrainer
from burnish.supervised.sft_trainer import SFTTrainer
from tiny import PROMPTS, tiny_config, tiny_model, tiny_tokenizer, watch_loss

TINY = {"model_name": "tiny", "lora_r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "max_new_tokens": 12}


def sft_trainer(**changes):
    config = SFTConfig(
        **(TINY | {"demonstrations": "-", "learning_rate": 1e-2, "batch_size": 4, "epochs": 30} | changes)
    )
    return SFTTrainer(config, tiny_model(), tiny_tokenizer())


def reward_trainer(**changes):
    settings = {"preferences": "-", "learning_rate": 5e-3, "batch_size": 8, "epochs": 6, "num_centring_prompts": 4}
    return RewardTrainer(RewardModelConfig(**(TINY | settings | changes)), tiny_model(), tiny_tokenizer())


DEMONSTRATIONS = [Demonstration(p, "yes") for p in PROMPTS]


# ------------------------------------------------------------------------------------------------------------- SFT


@pytest.mark.parametrize("scope", ["response", "sequence"])
def test_sft_learns_the_completion(scope):
    trainer = sft_trainer(adapter_scope=scope)
    before = trainer.measure(DEMONSTRATIONS)["loss"]
    history = trainer.train(DEMONSTRATIONS)
    after = trainer.measure(DEMONSTRATIONS)["loss"]
    assert len(history) == 60  # 30 epochs of 2 batches
    assert after < 0.3 * before


def test_sft_loss_is_that_of_the_completion_alone():
    trainer = sft_trainer()
    measured = trainer.measure(DEMONSTRATIONS[1:2])["loss"]
    prompt = trainer.encoder.encode([PROMPTS[1]])[0]
    answer = [*trainer.encoder.tokenizer("yes", add_special_tokens=False)["input_ids"], 256]
    logits = tiny_model()(input_ids=torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
    by_hand = -sum(logits[len(prompt) + t - 1, token] for t, token in enumerate(answer)) / len(answer)
    assert measured == pytest.approx(by_hand.item(), abs=1e-4)


def test_cutting_a_batch_into_passes_changes_nothing():
    losses = [sft_trainer(micro_batch_size=size, epochs=2).train(DEMONSTRATIONS)[-1]["loss"] for size in (1, 4)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_a_pass_holds_as_many_rows_as_activation_mb_allows():
    """240 tokens fit into a megabyte; a row computes 60 of its answer and 1 of its prompt."""
    trainer = sft_trainer(activation_mb=1, max_new_tokens=60, batch_size=8, epochs=1)
    assert trainer.base.activation_bytes == 4352
    passes = []
    watch_loss(trainer, lambda batch, loss_of: (passes.append(len(batch)), loss_of(batch))[1])
    trainer.train([Demonstration("why not:", "yes" * 40)] * 8)
    assert passes == [3, 3, 2]


def test_the_learning_rate_rises_over_a_tenth_of_the_updates_and_falls_to_nothing():
    rates = [u["learning_rate"] for u in sft_trainer(epochs=10).train(DEMONSTRATIONS)]  # 20 updates
    assert rates == pytest.approx([0.005, 0.01, *(0.01 * n / 18 for n in range(18, 0, -1))])
    assert [_ramp(u, 4) for u in range(4)] == pytest.approx([1, 1, 2 / 3, 1 / 3])  # a tenth is at least one
    assert _ramp(0, 1) == 1


def test_dropout_is_at_work_in_training_only():
    trainer = sft_trainer(lora_dropout=0.5, epochs=1)
    assert trainer.measure(DEMONSTRATIONS) == trainer.measure(DEMONSTRATIONS)
    trainer.train(DEMONSTRATIONS)
    assert not any(layer.training for layer in trainer.base._tuner_layers)
    with trainer.base.dropout():
        assert all(layer.training for layer in trainer.base._tuner_layers)
        first, second = trainer.measure(DEMONSTRATIONS), trainer.measure(DEMONSTRATIONS)
    assert first != second


@pytest.mark.parametrize("scope", ["response", "sequence"])
def test_the_sft_adapter_is_the_reference_and_the_start(tmp_path, scope):
    trainer = sft_trainer(adapter_scope=scope)
    trainer.train(DEMONSTRATIONS)
    run = Run.new(tmp_path, "sft").begin(trainer.config)
    save_to_run(run, trainer.model)
    config = tiny_config(sft=str(run.folder), adapter_scope=scope, learning_rate=1e-2, top_k=0, top_p=1.0)
    ppo = PPOTrainer(config, lambda p, r: [float(len(x)) for x in r], tiny_model(), tiny_tokenizer())
    first = ppo.ppo_step(PROMPTS)
    assert first["kl"] == pytest.approx(0.0, abs=1e-4)  # the policy starts as the reference
    assert sum("yes" in text for text in first["generated_texts"]) >= 6  # which is the SFT model, not the base
    second = ppo.ppo_step(PROMPTS)
    assert second["kl"] > 1e-4
    saved = trainer.base.adapter_parameters("sft")
    kept = ppo.base.adapter_parameters("sft")
    assert all(torch.equal(a, b) for a, b in zip(saved, kept, strict=True))


# ---------------------------------------------------------------------------------------------------- reward model


def planted_pairs(number, seed=0):
    """People like answers with a `z`. Length says nothing: the chosen one is longer as often as it is shorter."""
    draw = random.Random(seed)

    def answer(length):
        return [draw.choice("abcdef") for _ in range(length)]

    pairs = []
    for n in range(number):
        short = draw.randrange(2, 5)
        long = short + draw.randrange(1, 4)
        chosen, rejected = (answer(long), answer(short)) if n % 2 else (answer(short), answer(long))
        chosen[draw.randrange(len(chosen))] = "z"
        pairs.append(Preference(f"{draw.choice(PROMPTS)}", " ".join(chosen), " ".join(rejected)))
    return pairs


def test_a_reward_model_learns_a_planted_preference_and_ignores_length():
    train, held_out = planted_pairs(96), planted_pairs(40, seed=1)
    trainer = reward_trainer(epochs=8)
    trainer.train(train)
    chosen = trainer.scores([p.prompt for p in held_out], [p.chosen for p in held_out])
    rejected = trainer.scores([p.prompt for p in held_out], [p.rejected for p in held_out])
    report = reward_report(train, held_out, chosen, rejected)
    assert report.accuracy >= 0.9
    for side in (0, 1):  # whether the right one is the shorter or the longer
        assert sum(c > r for c, r in list(zip(chosen, rejected, strict=True))[side::2]) >= 0.8 * len(held_out) / 2
    assert report.longer_wins == pytest.approx(0.5)
    assert abs(report.length_correlation) < 0.4
    assert "held-out pairs" in report.verdict


def test_scores_are_centred_on_the_start_model():
    trainer = reward_trainer(num_centring_prompts=8, epochs=2)
    trainer.train(planted_pairs(16))
    prompts = list(dict.fromkeys(p.prompt for p in planted_pairs(16)))[:8]
    scores = torch.tensor(trainer.scores(prompts, trainer._answers_of_start(prompts)))
    assert scores.mean().item() == pytest.approx(0.0, abs=1e-4)
    assert scores.std(correction=0).item() == pytest.approx(1.0, abs=1e-3)


def test_a_reward_model_learns_from_scores():
    draw = random.Random(0)
    scored = []
    for _ in range(240):
        text = "".join(draw.choice("abcz") for _ in range(6))
        scored.append(Scored(draw.choice(PROMPTS), text, 10.0 + 5 * text.count("z")))
    trainer = reward_trainer(preferences=None, scores="-", epochs=12)
    trainer.train(scored[:200])
    given = torch.tensor(trainer.scores([s.prompt for s in scored[200:]], [s.response for s in scored[200:]]))
    wanted = torch.tensor([s.score for s in scored[200:]])
    assert torch.corrcoef(torch.stack([given, wanted]))[0, 1] > 0.7


def test_held_out_answers_are_cut_as_in_training():
    trainer = reward_trainer()
    trainer.model.mark_trained()
    long = "abcdefghijklmnopqrstuvwxyz"
    assert trainer.scores([PROMPTS[0]], [long]) == trainer.scores([PROMPTS[0]], [long[:12]])  # max_new_tokens
    assert trainer.scores([PROMPTS[0]], [long]) != trainer.scores([PROMPTS[0]], [long[:11]])  # which is finished


def test_an_answer_beyond_the_context_is_refused():
    trainer = reward_trainer()
    trainer.model.mark_trained()
    with pytest.raises(InputError, match="prompt and response 0 have 303 tokens; the reward model reads 256"):
        trainer.model.compute_rewards(["a:"], ["b" * 300])


def test_accuracy_is_that_of_the_pairs_among_scores():
    trainer = reward_trainer(epochs=1, scores="-")
    trainer.model.mark_trained()
    pairs = planted_pairs(4)
    tokens = trainer._tokens([*pairs, *(Scored(PROMPTS[0], "abc", float(n)) for n in range(4))])
    mixed, alone = trainer.epochs.measure(tokens), trainer.epochs.measure(tokens[:4])
    assert (mixed["accuracy"], mixed["margin"]) == (alone["accuracy"], pytest.approx(alone["margin"], abs=1e-5))
    assert "accuracy" not in trainer.epochs.measure(tokens[4:])


def test_answers_end_in_the_tokenizers_own_stop_token():
    model = tiny_model()
    model.generation_config.eos_token_id = [10, 256]
    config = SFTConfig(**(TINY | {"demonstrations": "-"}))
    trainer = SFTTrainer(config, model, tiny_tokenizer())
    assert trainer.base.stop_ids == [10, 256]
    assert trainer._tokens(DEMONSTRATIONS)[0].answer[-1] == 256


def test_both_answers_of_a_pair_share_one_reading_of_the_prompt():
    trainer = reward_trainer()
    trainer.invocation.agree(PROMPTS)
    trainer.model.mark_trained()
    trainer.scores([PROMPTS[3]] * 2, ["yes", "no"])
    prefix = len(trainer.encoder.encode([PROMPTS[3]])[0]) - trainer.base.num_adapted_prompt_tokens
    assert trainer.base.num_prompt_tokens_read == prefix


def test_a_reward_model_trained_from_sft_starts_there(tmp_path):
    sft = sft_trainer()
    sft.train(DEMONSTRATIONS)
    run = Run.new(tmp_path, "sft").begin(sft.config)
    save_to_run(run, sft.model)
    trainer = reward_trainer(sft=str(run.folder))
    ours, theirs = (t.adapter_parameters(n) for t, n in ((trainer.base, "reward"), (sft.base, "sft")))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_ppo_against_a_learned_reward_with_the_value_model_started_from_it(tmp_path):
    trainer = reward_trainer()
    trainer.train(planted_pairs(32))
    run = Run.new(tmp_path, "reward").begin(trainer.config)
    save_to_run(run, trainer.model)
    config = tiny_config(reward=[{"kind": "model", "path": str(run.folder)}], value_from_reward=True)
    ppo = PPOTrainer(config, None, tiny_model(), tiny_tokenizer())
    values = ppo.base.adapter_parameters("value")
    saved = trainer.base.adapter_parameters("reward")
    assert all(torch.equal(a, b) for a, b in zip(values, saved, strict=True))
    assert torch.equal(ppo.value_model.head.weight, trainer.model.head.weight)
    halved = tiny_config(reward=[{"kind": "model", "path": str(run.folder), "weight": -0.5}], value_from_reward=True)
    expected = PPOTrainer(halved, None, tiny_model(), tiny_tokenizer()).value_model.head
    torch.testing.assert_close(expected.weight, -0.5 * trainer.model.head.weight)
    torch.testing.assert_close(expected.bias, -0.5 * trainer.model.head.bias)
    results = ppo.ppo_step(PROMPTS)
    assert list(results["reward_parts"]) == ["model"]
    texts = results["generated_texts"]
    assert results["rewards"] == pytest.approx(
        ppo.reward_computer.models[0].score(results["sa_pairs"]).tolist(), abs=1e-4
    )
    assert len(texts) == len(PROMPTS)


def test_value_from_reward_needs_a_reward_model():
    with pytest.raises(InputError, match="value_from_reward needs a reward model"):
        tiny_config(value_from_reward=True)
    with pytest.raises(InputError, match="needs data: set preferences, scores or both"):
        RewardModelConfig(**TINY)


# ---------------------------------------------------------------------------------------------------------- report


def test_reward_report_by_hand():
    pairs = [Preference("p", "a b", "c"), Preference("p", "d", "e f"), Preference("p", "g h", "i j")]
    report = reward_report(pairs, pairs, [1.0, 0.0, 2.0], [0.0, 3.0, 0.0])
    assert report.accuracy == pytest.approx(2 / 3)
    assert report.margin == pytest.approx((1 - 3 + 2) / 3)
    assert report.longer_wins == pytest.approx((1 + 0 + 0.5) / 3)
    assert [(m.chosen, m.margin) for m in report.mistakes] == [("d", -3.0)]
    low, high = report.accuracy_interval
    assert 0 < low < 2 / 3 < high < 1
    assert "may be chance" in report.verdict


def test_score_report_by_hand():
    held_out = [
        Scored(f"p{score}", text, score) for text, score in (("a", 1.0), ("a b", 2.0), ("a b c d", 3.0), ("a b c", 4.0))
    ]
    report = score_report(held_out, [10.0, 20.0, 30.0, 40.0])
    assert report.score_correlation == pytest.approx(1.0)
    assert report.length_baseline == pytest.approx(0.8)  # ranks 1 2 4 3 against 1 2 3 4
    assert "good enough to train against" in report.verdict
    of_one_prompt = [Scored("p", s.response, s.score) for s in held_out]  # which is one case, not four
    assert "may be chance" in score_report(of_one_prompt, [10.0, 20.0, 30.0, 40.0]).verdict
    assert "may be chance" in score_report(held_out, [1.0, 3.0, 2.0, 2.5]).verdict
    low, high = correlation_interval(0.5, 28)  # atanh(0.5) = 0.549, half 1.96 / 5
    assert (low, high) == (pytest.approx(0.156, abs=1e-3), pytest.approx(0.736, abs=1e-3))


def test_a_better_shorter_answer_is_called_so():
    pairs = [Preference(f"p{n}", "a", "b c") for n in range(20)]
    report = reward_report(pairs, pairs, [1.0] * 19 + [0.0], [0.0] * 19 + [1.0])
    assert "no better than choosing the shorter answer (100%)" in report.verdict


def test_calibration_is_about_the_margins_that_the_loss_saw():
    pairs = [Preference("p", "a b", "c"), Preference("p", "d", "e f")]
    as_trained = reward_report(pairs, pairs, [3.0, 0.0], [0.0, 1.5])
    normalised = reward_report(pairs, pairs, [1.0, 0.0], [0.0, 0.5], spread=3.0)
    assert normalised.calibration_error == pytest.approx(as_trained.calibration_error)
    assert normalised.margin == pytest.approx(as_trained.margin / 3.0)


def test_calibration_and_accuracy_by_length_by_hand():
    chosen, rejected = ["a b", "a", "a b", "a", "a"], ["c", "c d", "c", "c d", "c"]
    pairs = [Preference(f"p{n}", c, r) for n, (c, r) in enumerate(zip(chosen, rejected, strict=True))]
    report = reward_report(pairs, pairs, [4.0, 0.0, 2.0, 0.0, 0.5], [0.0, 1.0, 0.0, 3.0, 0.0])
    # Margins 4, -1, 2, -3, 0.5; one to each of the five bins, from the least sure to the surest.
    margins = [0.5, 1.0, 2.0, 3.0, 4.0]
    assert [own.sure for own in report.calibration] == pytest.approx([1 / (1 + math.exp(-m)) for m in margins])
    assert [own.right for own in report.calibration] == [1.0, 0.0, 1.0, 0.0, 1.0]
    distances = [abs(own.sure - own.right) for own in report.calibration]
    assert report.calibration_error == pytest.approx(sum(distances) / 5)
    assert {name: (own.count, own.right) for name, own in report.by_length.items()} == {
        "longer": (2, 1.0),  # the first and the third
        "shorter": (2, 0.0),  # the last pair is of one length
    }
    assert report.by_length["longer"].interval == pytest.approx(share_interval(2, 2))


def test_counting_words_learns_a_word():
    train = [Preference("p", f"good {w}", f"bad {w}") for w in ("x", "y", "z")] * 3
    held_out = [Preference("p", "good thing", "bad thing"), Preference("p", "so good", "so bad")]
    report = reward_report(train, held_out, [0.0, 0.0], [1.0, 1.0])
    assert report.bag_of_words == 1.0
    assert report.accuracy == 0.0
