"""What others build on top: an advantage estimator, a kind of reward and a rollout engine, each from outside in a few
lines. docs/design.md says where each would go if it were to become part of burnish.
"""

import io
from typing import Literal

import pytest
import torch
from rich.console import Console

from burnish import InputError, PPOTrainer, SAPairs, TrainConfig
from burnish.config.files import load_config
from burnish.ppo.meanings import METRICS
from burnish.ppo.samples import log_step
from burnish.rewards.part import RewardPart
from burnish.rewards.parts import KINDS
from burnish.rollout.rollout import Rollout
from burnish.runs.run import Run
from burnish.runs.same_run import differences
from burnish.show.page import report_page
from burnish.show.terminal import StepProgress
from tiny import PROMPTS, count_vowels, tiny_config, tiny_model, tiny_tokenizer

# ----------------------------------------------------------------------------------------------- an advantage estimator


class GroupMean:
    """A response's whole reward less the mean of all responses to its prompt, the same for each of its tokens."""

    def compute_advantages(self, sa_pairs: SAPairs) -> SAPairs:
        score = sa_pairs["reward"].sum(1)  # [B]
        groups = torch.tensor(sa_pairs.groups)
        same = (groups[:, None] == groups).float()  # [B, B]
        advantage = score - same @ score / same.sum(1)
        return sa_pairs.with_columns(advantage=advantage[:, None].expand_as(sa_pairs.mask), baseline=0 * sa_pairs["kl"])


def test_an_estimator_with_half_a_state_is_refused():
    """It would be resumed without it, and nobody would know."""

    class Forgetful(GroupMean):
        def state(self):
            return {"weight": 1.0}

    with pytest.raises(InputError, match="Forgetful has no restore and no metrics"):
        PPOTrainer(tiny_config(), count_vowels, tiny_model(), tiny_tokenizer(), estimator=Forgetful())


@pytest.fixture(scope="module")
def critic_free():
    trainer = PPOTrainer(tiny_config(steps=3), count_vowels, tiny_model(), tiny_tokenizer(), estimator=GroupMean())
    copies = [PROMPTS[n] for n in (0, 1, 2, 3, 0, 1, 2, 3)]  # copies of a prompt need not be neighbours
    return trainer, copies, [trainer.ppo_step(copies) for _ in range(2)]


def test_without_a_critic_none_is_built_trained_saved_or_shown(critic_free, tmp_path):
    trainer, _, steps = critic_free
    assert trainer.value_model is None
    assert set(trainer.base.peft_model.peft_config) == {"policy"}
    assert not {"value", "value_loss", "value_updates", "explained_variance", "returns"} & steps[0].keys()
    assert set(steps[0]) - {"prompts", "generated_texts", "rewards", "sa_pairs"} <= set(METRICS)
    assert not {"value", "td_error", "return"} & steps[0]["sa_pairs"][0].keys()
    assert not [name for name in trainer.state().tensors if "value" in name]
    trainer.save(tmp_path / "run")
    assert [p.name for p in (tmp_path / "run" / "adapters").iterdir()] == ["policy"]
    run = Run(tmp_path / "run")
    for results in steps:
        log_step(run, results, trainer.base.tokenizer, 2)
    page = report_page(run)
    assert "Value loss" not in page
    assert "TD error" not in page


def test_responses_know_their_prompts_group(critic_free):
    _, _, steps = critic_free
    pairs = steps[0]["sa_pairs"]
    assert list(pairs.groups) == [0, 1, 2, 3, 0, 1, 2, 3]
    score, advantage = pairs["reward"].sum(1), pairs["advantage"]
    for n in range(4):  # two responses each: one is as far above their mean as the other is below
        assert advantage[n, 0] == pytest.approx((score[n] - score[n + 4]).item() / 2, abs=1e-6)
        assert advantage[n, 0] == pytest.approx(-advantage[n + 4, 0].item(), abs=1e-6)
    cut = pairs.select(torch.tensor([5, 1, 2]))
    assert list(cut.groups) == [1, 1, 2]
    again = SAPairs.from_dicts(cut.to_dicts())
    assert list(again.groups) == [1, 1, 2]
    assert pairs[0]["group"] == 0


def test_a_run_without_a_critic_resumes_to_the_bit(critic_free):
    trainer, copies, _ = critic_free
    other = PPOTrainer(tiny_config(steps=3), count_vowels, tiny_model(), tiny_tokenizer(), estimator=GroupMean())
    other.generator.agree_on_invocation(copies)
    other.restore(trainer.state())
    ours, theirs = trainer.ppo_step(copies), other.ppo_step(copies)
    assert ours["generated_texts"] == theirs["generated_texts"]
    assert ours["policy_loss"] == theirs["policy_loss"]


class RunningMean:
    """A response's whole reward less the mean of all before its batch."""

    def __init__(self):
        self.sum, self.count = 0.0, 0

    def compute_advantages(self, sa_pairs: SAPairs) -> SAPairs:
        score = sa_pairs["reward"].sum(1)  # [B]
        advantage = score - self.sum / max(self.count, 1)
        self.sum, self.count = self.sum + score.sum().item(), self.count + len(score)
        return sa_pairs.with_columns(advantage=advantage[:, None].expand_as(sa_pairs.mask))

    def state(self):
        return {"reward_sum": self.sum, "reward_count": self.count}

    def restore(self, state):
        self.sum, self.count = state["reward_sum"], state["reward_count"]

    def metrics(self):
        return {"mean_so_far": self.sum / self.count}


def test_what_an_estimator_carries_from_batch_to_batch_is_saved_and_shown():
    def trainer():
        config = tiny_config(whiten_advantages=False)
        return PPOTrainer(config, count_vowels, tiny_model(), tiny_tokenizer(), estimator=RunningMean())

    first, other = trainer(), trainer()
    results = first.ppo_step(PROMPTS)
    assert results["mean_so_far"] == pytest.approx(results["sa_pairs"]["reward"].sum(1).mean().item())
    other.generator.agree_on_invocation(PROMPTS)
    other.restore(first.state())
    assert (other.estimator.sum, other.estimator.count) == (first.estimator.sum, 8)
    assert first.ppo_step(PROMPTS)["policy_loss"] == other.ppo_step(PROMPTS)["policy_loss"]


def test_columns_of_your_own_have_their_place_in_the_rows(critic_free):
    pairs = critic_free[2][0]["sa_pairs"]
    assert pairs[0]["baseline"] == 0.0
    assert SAPairs.from_dicts(pairs.to_dicts()).has("baseline")


# --------------------------------------------------------------------------------------------------- a kind of reward


class LengthPart(RewardPart):
    """Minus the distance to a number of letters."""

    kind: str = "length"
    letters: int

    def make(self, workshop):
        return lambda prompts, responses: [-abs(len(response) - self.letters) for response in responses]

    def check_prompts(self, prompts):
        if any("forbidden" in prompt for prompt in prompts):
            raise ValueError("not this one")


def test_a_kind_of_reward_from_outside_is_a_part_like_any_other(tmp_path):
    mixed = [LengthPart(letters=3, weight=2.0), {"kind": "rule", "name": "repetition"}]
    config = tiny_config(reward=mixed)
    assert config.model_dump(mode="json")["reward"][0] == {"kind": "length", "weight": 2.0, "letters": 3}
    trainer = PPOTrainer(config, None, tiny_model(), tiny_tokenizer())
    results = trainer.ppo_step(PROMPTS)
    assert set(results["reward_parts"]) == {"length", "repetition"}
    lengths = [-abs(len(text) - 3) for text in results["generated_texts"]]
    assert results["reward_parts"]["length"] == pytest.approx(sum(lengths) / len(lengths))
    with pytest.raises(ValueError, match="not this one"):
        config.reward_parts[0].check_prompts(["a forbidden prompt"])


class FolderPart(RewardPart):
    """One that stands in a folder."""

    path_keys = model_keys = ("weights",)
    kind: Literal["folder"] = "folder"
    weights: str


def test_a_kind_says_itself_which_of_its_keys_are_paths(tmp_path, monkeypatch):
    monkeypatch.setitem(KINDS, "folder", FolderPart)
    (tmp_path / "here").mkdir()
    (tmp_path / "config.yaml").write_text("prompts: p.txt\nreward: [{kind: folder, weights: here}]\n")
    config = load_config(TrainConfig, tmp_path / "config.yaml")
    assert config.reward_parts[0].weights == str(tmp_path / "here")
    moved = config.model_copy(update={"reward": [FolderPart(weights=str(tmp_path / "there"))]})
    before = config.model_dump(mode="json")
    assert list(differences(before, moved)) == ["reward"]  # both could be there
    (tmp_path / "here").rename(tmp_path / "there")
    assert differences(before, moved) == {}


# ----------------------------------------------------------------------------------------------------- a rollout engine


class Parrot:
    """Gives tokens alone, as a server may: of every prompt its first letters, then the stop token."""

    def generate(self, speaker, prompts, max_new_tokens, sampler, generator=None, stop_ids=None):
        responses = [[*prompt[: max_new_tokens - 1], 256] for prompt in prompts]
        return Rollout.of_tokens(prompts, responses, [True] * len(prompts))


@pytest.mark.parametrize("layers", ["all", 1])
def test_an_engine_that_gives_tokens_alone_can_be_learned_from(layers):
    config = tiny_config(top_k=0, top_p=1.0, lora_layers=layers)
    trainer = PPOTrainer(config, count_vowels, tiny_model(), tiny_tokenizer(), engine=Parrot())
    results = trainer.ppo_step(PROMPTS)
    assert results["generated_texts"][1] == PROMPTS[1][:5]
    pairs = results["sa_pairs"]
    assert results["finished"] == 1.0
    assert "entropy" not in results  # which only the sampler would know
    prompt = tiny_tokenizer()(PROMPTS[1])["input_ids"]
    said = pairs["action"][1][pairs.mask[1]].tolist()
    with torch.no_grad():
        logits = tiny_model()(input_ids=torch.tensor([[*prompt, *said]])).logits[0].log_softmax(-1)
    expected = [logits[len(prompt) - 1 + n, token].item() for n, token in enumerate(said)]
    assert pairs["logprob"][1][pairs.mask[1]].tolist() == pytest.approx(expected, abs=1e-4)
    assert pairs["exact_kl"].abs().max() < 1e-4  # the policy starts as its reference
    assert results["first_ratio_error"] < 1e-4
    console = Console(file=io.StringIO())
    with StepProgress(console, 1) as progress:
        progress.on_step(results)
    assert "step 1/1" in console.file.getvalue()
    assert "entropy" not in console.file.getvalue()
