"""Everything that computes, on a stand-in for a GPU: no tensor on the wrong device, and a host that hardly waits."""

import pytest
import torch

from burnish import DivergedError, PPOTrainer, Sampler
from burnish.config import RewardModelConfig, SFTConfig
from burnish.data import Demonstration, Preference, Scored
from burnish.evaluation.measure import evaluate
from burnish.models.reward_model import RewardModel
from burnish.ppo.reward_computer import RewardComputer
from burnish.rollout import sampling
from burnish.rollout.local import TOKENS_PER_LOOK
from burnish.rollout.sampling import Begun
from burnish.runs.checkpoints import State
from burnish.supervised.reward_trainer import RewardTrainer
from burnish.supervised.sft_trainer import SFTTrainer
from families import family_model
from stand_in_device import DEVICE, OnDevice, StandIn, moved
from test_same_losses import share_of_high_letters
from tiny import PROMPTS, encoded, generate, tiny_config, tiny_model, tiny_tokenizer

TINY = {"model_name": "tiny", "lora_r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "max_new_tokens": 12}


@pytest.fixture
def device():
    with StandIn() as stand_in:
        yield stand_in


def trainer_on(model, **settings):
    return PPOTrainer(tiny_config(**settings), share_of_high_letters, model, tiny_tokenizer())


def both(build):
    """What `build` makes of a model on the CPU, and of the same one on the device."""
    here = build(tiny_model(layers=3))
    with StandIn():
        there = build(moved(tiny_model(layers=3)))
    return here, there


# ------------------------------------------------------------------------------------------- the stand-in is strict


def test_a_tensor_of_the_cpu_among_those_of_the_device_is_refused(device):
    on_device = torch.ones(3, device=DEVICE)
    with pytest.raises(RuntimeError, match="same device"):
        on_device + torch.ones(3)
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3)[torch.zeros(1, dtype=torch.long, device=DEVICE)]
    with pytest.raises(RuntimeError, match="generator is not on the device"):
        torch.rand(3, device=DEVICE, generator=torch.Generator())
    with pytest.raises(RuntimeError, match="numpy"):
        on_device.numpy()
    on_device[torch.tensor([0])] = 2 * torch.ones(())  # CUDA takes indices and single numbers from the CPU
    assert on_device.tolist() == [2.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("count", "waits"),
    [
        (lambda x: x.sum().item(), 1),
        (lambda x: bool(x.any()), 1),
        (lambda x: x.tolist(), 1),
        (lambda x: x.cpu(), 1),
        (lambda x: torch.zeros(3).copy_(x), 1),
        (lambda x: x[x > 1], 1),
        (lambda x: x.nonzero(), 1),
        (lambda x: x.unique(), 1),
        (lambda x: x.masked_select(x > 1), 1),
        (lambda x: torch.equal(x, x), 1),
        (lambda x: x.__setitem__(x > 1, x[:1]), 0),  # CUDA fills by the mask
        (lambda x: x.masked_fill(x > 1, 0).to(torch.float64).sum(), 0),
        (lambda x: torch.tensor([1.0], device=x.device) + x, 0),
    ],
)
def test_the_host_waits_for_what_it_must_know(device, count, waits):
    count(torch.arange(3.0, device=DEVICE))
    assert device.num_waits == waits


def test_a_random_number_of_the_cpu_is_found_in_the_decode_loop(device, monkeypatch):
    def draw(p, generator=None):
        return (p.cumsum(1) > torch.rand(len(p), 1)).long().argmax(1, keepdim=True)

    trainer = trainer_on(moved(tiny_model()))
    monkeypatch.setattr(sampling, "draw", draw)
    with pytest.raises(RuntimeError, match=r"same device.*rollout/sampling.py:\d+ __call__"):
        trainer.ppo_step(PROMPTS)


def test_a_number_read_in_the_decode_loop_is_found(device):
    class Nosy(Sampler):
        def __call__(self, logits, generator=None, numbers=None):
            sampled = super().__call__(logits, generator, numbers)
            sampled.logprob[0].item()
            return sampled

    trainer = trainer_on(moved(tiny_model()))
    waits = [waits_of(trainer, device, 16, sampler) for sampler in (Sampler(), Nosy())]
    assert waits[1].total() - waits[0].total() == 16
    (planted,) = waits[1].keys() - waits[0].keys()
    assert planted[0] == "a number is read"
    assert planted[1].startswith("rollout/local.py")


# ------------------------------------------------------------------------------------------------ the decode loop


def waits_of(trainer, device, num_tokens, sampler):
    prompts, generator = encoded(trainer), torch.Generator(DEVICE).manual_seed(0)
    device.take_waits()
    generate(trainer.policy, prompts, num_tokens, sampler, generator, [])
    return device.take_waits()


@pytest.mark.parametrize(
    ("scope", "sampler"),
    [("response", Sampler(0.8, top_k=20, top_p=0.9)), ("sequence", Sampler())],
    ids=["kept", "whole"],
)
def test_the_host_waits_once_in_eight_tokens(device, scope, sampler):
    trainer = trainer_on(moved(tiny_model(layers=3)), adapter_scope=scope, lora_layers=1)
    waits = [waits_of(trainer, device, num_tokens, sampler).total() for num_tokens in (8, 24)]
    assert waits[1] - waits[0] == 16 // TOKENS_PER_LOOK == 2
    assert waits[0] <= 6  # and a few times a batch


def test_responses_end_as_they_do_where_every_token_is_looked_at():
    ends = torch.full((32, 20), -1)
    ends[range(20), range(20)] = 256  # response n is told to stop at its token n, the last twelve are told nothing

    def rollout_of(model):
        trainer = trainer_on(model)
        sampler = Begun(greedy=True, tokens=ends.to(trainer.base.device))
        prompts = [f"{word} {prompt}" for word in ("well", "so", "and", "but") for prompt in PROMPTS]
        return generate(trainer.policy, encoded(trainer, prompts), 20, sampler)

    here, there = both(rollout_of)
    assert (here.mask.sum(1)[:20] <= torch.arange(20) + 1).all()
    assert 20 <= here.finished.sum() < 32
    with StandIn():
        columns = {n: getattr(there, n).cpu() for n in ("action", "mask", "finished", "logprob", "entropy", "states")}
    for name, column in columns.items():
        torch.testing.assert_close(column, getattr(here, name), atol=1e-4, rtol=0)


def test_a_policy_that_is_ruined_between_two_looks_is_reported_at_the_next(device):
    class Ruined(Sampler):
        def __call__(self, logits, generator=None, numbers=None):
            sampled = super().__call__(logits, generator, numbers)
            calls.append(len(numbers))
            if len(calls) == 3:
                sampled.logprob[5] = torch.nan
            return sampled

    calls = []
    trainer = trainer_on(moved(tiny_model()))
    with pytest.raises(DivergedError, match=r"not finite \(response 5\)"):
        generate(trainer.policy, encoded(trainer), 20, Ruined(greedy=True), None, [])
    assert len(calls) == TOKENS_PER_LOOK


# ------------------------------------------------------------------------------------------- what learns and scores

STEPS = {
    "ppo": {},
    "top layers, kept sets, whole sequences": {"lora_layers": 1, "adapter_scope": "sequence", "micro_batch_size": 3},
    "exact KL in both": {"kl_in": "both", "kl_estimator": "exact", "entropy_coef": 0.01, "top_k": 0, "top_p": 1.0},
    "rloo": {"recipe": "rloo"},
    "grpo": {"recipe": "grpo"},
    "reinforce++": {"recipe": "reinforce++"},
    "tether": {"recipe": "tether"},
}


@pytest.mark.parametrize("name", STEPS)
def test_a_ppo_step_on_the_device_is_the_cpus(name):
    def step(model):
        trainer = trainer_on(model, epochs=1, mini_batch_size=4, max_new_tokens=5, **STEPS[name])
        trainer.generator.stop_ids = []
        each = trainer.config.responses_per_prompt
        prompts = [p for p in PROMPTS[: 8 // each] for _ in range(each)]
        return [trainer.ppo_step(prompts) for _ in range(2 if name == "ppo" else 1)]

    for here, there in zip(*both(step), strict=True):
        assert there["generated_texts"] == here["generated_texts"]
        for metric in ("policy_loss", "value_loss", "kl", "policy_grad_norm", "entropy"):
            if metric in here:
                assert there[metric] == pytest.approx(here[metric], abs=1e-4, rel=1e-3), metric
        assert isinstance(there["sa_pairs"].mask, OnDevice)


def test_longer_responses_make_a_ppo_step_wait_for_their_decoding_alone(device):
    waits = []
    for num_tokens in (8, 24):
        trainer = trainer_on(moved(tiny_model()), max_new_tokens=num_tokens, epochs=1)
        trainer.generator.stop_ids = []
        device.take_waits()
        trainer.ppo_step(PROMPTS)
        waits.append(device.take_waits().total())
    assert waits[1] - waits[0] == 16 // TOKENS_PER_LOOK
    assert waits[0] < 70  # some ten for each pass of training, some forty for scores and metrics


def test_a_checkpoint_goes_back_to_the_device(device):
    def fresh():
        trainer = trainer_on(moved(tiny_model()))
        trainer.generator.stop_ids = []
        return trainer

    first, second = fresh(), fresh()
    first.ppo_step(PROMPTS)
    state = first.sound_state()
    saved = State({name: t.cpu() for name, t in state.tensors.items()}, state.values)  # as a file gives it
    second.restore(saved)
    assert all(isinstance(p, OnDevice) for p in second.policy.parameters())
    results = [trainer.ppo_step(PROMPTS) for trainer in (first, second)]
    assert results[0]["policy_loss"] == results[1]["policy_loss"]
    assert results[0]["value_loss"] == results[1]["value_loss"]


def test_sft_on_the_device_is_the_cpus():
    def losses(model):
        config = SFTConfig(**TINY, demonstrations="-", learning_rate=1e-2, batch_size=4, epochs=2)
        trainer = SFTTrainer(config, model, tiny_tokenizer())
        history = trainer.train([Demonstration(p, "yes") for p in PROMPTS])
        trainer.epochs.sound_state()
        return [update["loss"] for update in history]

    here, there = both(losses)
    assert there == pytest.approx(here, abs=1e-4)


def test_a_reward_model_on_the_device_is_the_cpus():
    def scores(model):
        settings = {"preferences": "-", "learning_rate": 5e-3, "batch_size": 4, "epochs": 2, "num_centring_prompts": 4}
        trainer = RewardTrainer(RewardModelConfig(**TINY, **settings, top_k=1), model, tiny_tokenizer())
        trainer.train([*(Preference(p, "yes", "no") for p in PROMPTS), Scored("x:", "yes", 1.0)])
        return trainer.scores(PROMPTS, ["yes"] * 8) + trainer.model.compute_rewards(PROMPTS, ["no"] * 8)

    here, there = both(scores)
    assert there == pytest.approx(here, abs=2e-3)


def test_a_reward_model_judges_ppo_on_the_device_and_is_measured():
    def rewards(model):
        trainer = trainer_on(model)
        trainer.setup.add_adapter("reward")
        judge = RewardModel(trainer.base, trainer.setup.encoder.encode)
        judge.head.weight.data.copy_(torch.linspace(-1, 1, 32)[None])
        judge.mark_trained()
        trainer.reward_computer = RewardComputer(judge)
        trainer.generator.stop_ids = []
        measured = evaluate(trainer, PROMPTS)
        return [*trainer.ppo_step(PROMPTS)["rewards"], *measured.kl]

    here, there = both(rewards)
    assert there == pytest.approx(here, abs=1e-3)


@pytest.mark.parametrize("family", ["gemma3_text", "gpt_neox"])
def test_other_families_keep_to_the_device(device, family):
    trainer = PPOTrainer(tiny_config(), share_of_high_letters, moved(family_model(family)), tiny_tokenizer())
    assert trainer.ppo_step(PROMPTS)["policy_loss"] == pytest.approx(0, abs=1)
