"""Every key of a config reaches what it configures.

Each key is changed in turn, and nothing else. A key of the algorithm is first seen where it acts, and not before; a
key of memory changes how the work is cut and nothing that is learned; a key of the run changes what the run leaves.
The tables at the end say which is which: a new key needs a line there.
"""

import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from burnish import BurnishError, DivergedError, InputError, PPOTrainer, maths
from burnish.base_setup import base_setup, quantization
from burnish.cli import training
from burnish.config import RewardModelConfig, SFTConfig, TrainConfig
from burnish.data import Demonstration, Preference, Prompt
from burnish.models.adapter_files import save_to_run
from burnish.models.updates import Updates
from burnish.processes import wire, world
from burnish.rewards import python
from burnish.runs.checkpoints import Checkpoints
from burnish.runs.run import Run
from burnish.services import patience
from burnish.supervised.reward_trainer import RewardTrainer
from burnish.supervised.sft_trainer import SFTTrainer
from tiny import PROMPTS, perturb, tiny_model, tiny_tokenizer, tiny_trainer, watch_loss

# The same sums in another order come out up to 1e-5 apart here; what is meant to differ differs by more than 1e-3.
ROUNDING = 1e-4
LORA = {"model_name": "model", "lora_r": 2, "lora_alpha": 4, "lora_dropout": 0.0}
FILES = {"num_eval_prompts": 2, "save_every": 1, "save_minutes": 1000.0, "keep_checkpoints": 5}
PPO = {"prompts": "prompts.jsonl", "reward": "judge.py:score", "max_kl": None, "target_kl_stop": None, "steps": 2}
PPO |= {"batch_size": 4, "epochs": 2, "max_new_tokens": 4, "top_k": 0, "top_p": 1.0}
PPO |= {"learning_rate": 1e-2, "value_learning_rate": 1e-2} | LORA | FILES
TEXTS = LORA | FILES | {"max_new_tokens": 8, "batch_size": 2, "epochs": 1, "learning_rate": 1e-2}
DEMONSTRATIONS = [Demonstration(p, f"{p[:5]} yes " * 8) for p in PROMPTS]
PREFERENCES = [Preference(p, f"{p[:5]} yes " * 8, f"no {p[1:3]}") for p in PROMPTS]
TRACKED: list[str] = []  # what the stand-in for a tracker's library was asked to do


def judge(prompts, responses):
    """Differs from response to response: of equal rewards nothing but rounding would be learned."""
    return [sum(map(ord, r)) % 10 / 5 - 1 for r in responses]


@pytest.fixture(scope="module", autouse=True)
def workplace(tmp_path_factory):
    """Models, data, and adapters to start from, in the folder that the tests stand in."""
    tracker = {name: lambda *_, _n=name, **__: TRACKED.append(_n) for name in ("init", "log", "finish")}
    with contextlib.chdir(tmp_path_factory.mktemp("wiring")), pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "trackio", SimpleNamespace(**tracker, __spec__=object()))
        for name, seed in (("model", 0), ("other_model", 5)):
            tiny_model(seed=seed).save_pretrained(name)
            tiny_tokenizer().save_pretrained(name)
        Path("judge.py").write_text(
            "def score(prompts, responses):\n    return [sum(map(ord, r)) % 10 / 5 - 1 for r in responses]\n"
        )
        usual = [f"number {n}:" for n in range(8)]
        write_data("", usual)
        write_data("other_", [f"number {n}:" for n in range(50, 58)])
        write_data("bad_", [*usual, " ", "x" * 300 + ":"])
        write_data("renamed_", usual, prompt="question")
        for name, stage in (("sft", STAGES["sft"]), ("reward", STAGES["reward"])):
            trainer = stage.trainer(stage.config(**stage.base), tiny_model(), tiny_tokenizer())
            trainer.invocation.agree(PROMPTS)
            for p in trainer.model.parameters():
                p.data += 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
            save_to_run(Run(Path(name)).begin(trainer.config), trainer.model)
        yield


def write_data(name, prompts, prompt="prompt"):
    rows = [{prompt: p, "completion": f"{p[-3:]} yes", "chosen": f"{p[-3:]} yes", "rejected": "no"} for p in prompts]
    rows = [row | {"response": row["chosen"], "score": n} for n, row in enumerate(rows)]
    for kind in ("prompts", "demonstrations", "preferences", "scores"):
        Path(f"{name}{kind}.jsonl").write_text("\n".join(map(json.dumps, rows)))


# ------------------------------------------------------------------------------------ what a config makes of the maths


@dataclass(frozen=True)
class Seen:
    """Of some steps or updates: the numbers in the order in which they come about, and how the work was cut."""

    numbers: dict[str, Any]
    facts: dict[str, Any]

    def first_difference(self, other: "Seen") -> str | None:
        return next((place for place in self.numbers | other.numbers if self.differs(other, place)), None)

    def differs(self, other: "Seen", place: str) -> bool:
        a, b = self.numbers.get(place), other.numbers.get(place)
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            return a.shape != b.shape or float((a.double() - b).abs().max()) > ROUNDING
        return a != b


def weights(*models):
    return torch.cat([p.detach().flatten() for model in models for p in model.parameters()])


def steps_of(config: TrainConfig, given: Any) -> Seen:
    """All steps of a PPO run."""
    trainer = PPOTrainer(config, given, tiny_model(), tiny_tokenizer())
    numbers: dict[str, Any] = {"start": weights(trainer.policy, trainer.value_model)}
    passes: list[int] = []
    backward = Updates._backward

    def counted(updates, given, weight, loss_of):
        passes.append(given.mask.shape[0])
        return backward(updates, given, weight, loss_of)

    def on_step(results):
        step, pairs = results["step"], results["sa_pairs"]
        numbers[f"{step} prompts"] = results["prompts"]
        for column in ("action", "kl", "reward", "value", "td_error", "advantage", "returns"):
            numbers[f"{step} {column}"] = pairs[column]
        numbers[f"{step} value model"] = weights(trainer.value_model)
        numbers[f"{step} policy"] = weights(trainer.policy)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Updates, "_backward", counted)
        trainer.train([Prompt(p, reference=f"after {p}") for p in PROMPTS], on_step)
    if config.top_k == 0:  # whatever else was set, the policy starts as its reference
        assert numbers["1 kl"].abs().max() < 1e-4
    dropout = trainer.base.peft_model.peft_config["policy"].lora_dropout
    return Seen(numbers, {"passes": passes, "kept prompts": trainer.base.prompt_cache.nbytes, "dropout": dropout})


def updates_of(config: Any, _: Any) -> Seen:
    """All updates of an SFT or reward model."""
    kind, data = (SFTTrainer, DEMONSTRATIONS) if isinstance(config, SFTConfig) else (RewardTrainer, PREFERENCES)
    trainer = kind(config, tiny_model(), tiny_tokenizer())
    numbers: dict[str, Any] = {"start": weights(trainer.model)}
    passes: list[int] = []
    watch_loss(trainer, lambda batch, loss_of: (passes.append(len(batch)), loss_of(batch))[1])

    def on_update(statistics):
        numbers.setdefault("first loss", torch.tensor(statistics["loss"]))
        numbers["weights"] = weights(trainer.model)

    trainer.train(data, on_update)
    if isinstance(trainer, RewardTrainer):
        numbers["scores"] = torch.tensor(trainer.scores(PROMPTS, ["yes"] * len(PROMPTS)))
    return Seen(numbers, {"passes": passes, "kept prompts": trainer.base.prompt_cache.nbytes})


# -------------------------------------------------------------------------------------------------- what a run leaves


def run_of(command: Callable[..., None], settings: dict[str, Any]) -> dict[str, Any]:
    """What a command leaves in a folder of its own; or that it refused, and why."""
    here = Path(mkdtemp(dir="."))
    config = Path(f"{here.name}.yaml").resolve()
    config.write_text(yaml.safe_dump(settings))
    TRACKED.clear()
    asked: list[float] = []
    isolated = python.isolated

    def recorded(address: str, seconds: float) -> Any:
        asked.append(seconds)
        return isolated(address, seconds)

    with contextlib.chdir(here), pytest.MonkeyPatch.context() as patch:
        patch.setattr(python, "isolated", recorded)
        try:
            command(str(config))
        except BurnishError as error:
            return {"refused": str(error)}
    (result,) = here.rglob("result.json")
    run = Run(result.parent)
    outcome, start, trained_on, verdict = (
        run.read(name) if run.has(name) else {}
        for name in ("result.json", "start.json", "trained_on.json", "verdict.json")
    )
    samples = run.read_lines("samples.jsonl")
    return {
        "run_dir": run.folder.parent.name,
        "run_name": run.folder.name if "run_name" in settings else None,
        "checkpoints": [c.step for c in Checkpoints(run.folder / "checkpoints").all()],
        "samples": len(samples),
        "training prompts": trained_on or {s["prompt"] for s in samples},
        "held out": start.get("evaluation", {}).get("prompts") or start.get("value") or outcome.get("report"),
        "reward parts": [list(row.get("reward_parts", ())) for row in run.read_lines("metrics.jsonl")],
        "best of": (verdict.get("best_of_n") or {}).get("n"),
        "second reward": "second_reward" in (outcome.get("after") or {}),
        "data": list(outcome.get("data", ())),
        "reward seconds": set(asked),
        "tracked": list(TRACKED),
    }


# --------------------------------------------------------------------------------------------------- kinds of checks


@dataclass(frozen=True)
class Stage:
    """A command, its config, and one from which any key can be changed."""

    config: type
    command: Callable[..., None]
    trainer: Callable[..., Any]
    look: Callable[[Any, Any], Seen]
    base: dict[str, Any]

    def seen(self, changes: dict[str, Any]) -> Seen:
        given = None if "reward" in changes else judge
        return remembered((self.config, changes), lambda: self.look(self.config(**(self.base | changes)), given))

    def run(self, changes: dict[str, Any]) -> dict[str, Any]:
        return remembered((self.command, changes), lambda: run_of(self.command, self.base | changes))


STAGES = {
    "train": Stage(TrainConfig, training.train, PPOTrainer, steps_of, PPO),
    "sft": Stage(SFTConfig, training.sft, SFTTrainer, updates_of, TEXTS | {"demonstrations": "demonstrations.jsonl"}),
    "reward": Stage(
        RewardModelConfig,
        training.reward,
        RewardTrainer,
        updates_of,
        TEXTS | {"preferences": "preferences.jsonl", "num_centring_prompts": 3},
    ),
}
REMEMBERED: dict[str, Any] = {}
Check = Callable[[Stage, str], None]


def remembered(what: Any, make: Callable[[], Any]) -> Any:
    if repr(what) not in REMEMBERED:
        REMEMBERED[repr(what)] = make()
    return REMEMBERED[repr(what)]


def seen(value: Any, first: str, *more: str, **also: Any) -> Check:
    """Another value is first seen at one place, and then in others; `also` is set on both sides."""

    def check(stage: Stage, key: str) -> None:
        before, after = stage.seen(also), stage.seen(also | {key: value})
        assert before.first_difference(after) == first
        assert [place for place in more if not before.differs(after, place)] == []

    return check


def unseen(value: Any, fact: str, **also: Any) -> Check:
    """Nothing that is learned differs by more than rounding, and still the key arrives."""

    def check(stage: Stage, key: str) -> None:
        before, after = stage.seen(also), stage.seen(also | {key: value})
        assert before.first_difference(after) is None
        assert before.facts[fact] != after.facts[fact]

    return check


def in_run(value: Any, fact: str, expected: Any = None, **also: Any) -> Check:
    """Another run is left behind."""

    def check(stage: Stage, key: str) -> None:
        before, after = stage.run(also).get(fact), stage.run(also | {key: value}).get(fact)
        assert before != after
        assert expected in (None, after)

    return check


def both(*checks: Check) -> Check:
    def check(stage: Stage, key: str) -> None:
        for each in checks:
            each(stage, key)

    return check


def another_model(stage: Stage, key: str) -> None:
    heads = [stage.trainer(stage.config(**stage.base | change)).base.head for change in ({}, {key: "other_model"})]
    assert not torch.equal(*heads)


def a_version_on_the_hub(stage: Stage, key: str) -> None:
    """A folder has none: that it was asked for shows by its refusal."""
    with pytest.raises(InputError, match="revision 'v2' is a version of a model on the hub"):
        stage.trainer(stage.config(**stage.base | {key: "v2"}))


def number_format(stage: Stage, key: str) -> None:
    assert stage.trainer(stage.config(**stage.base)).base.head.dtype == torch.float32
    assert stage.trainer(stage.config(**stage.base | {key: "bfloat16"})).base.head.dtype == torch.bfloat16


def a_device_that_is_none(stage: Stage, key: str) -> None:
    """There is only one on most machines: that another is asked for shows by its refusal."""
    with pytest.raises(InputError, match="device 'abacus' cannot be used here"):
        stage.trainer(stage.config(**stage.base | {key: "abacus"}))


def a_library_that_is_missing(stage: Stage, key: str) -> None:
    """Whether or not it is there: that it is asked for shows by its refusal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantization, "find_spec", lambda name: None)
        with pytest.raises(InputError, match="quantize: nf4 needs the package bitsandbytes"):
            stage.trainer(stage.config(**stage.base | {key: "nf4"}))


def layers_among_two(stage: Stage, key: str) -> None:
    """One process has nothing to share out; that it is asked for among two shows by what it would do."""
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base_setup, "shard", lambda model, layers, device, offload: asked.append(offload))
        patch.setattr(wire, "_joined", wire.World(0, 2))
        patch.setattr(world, "together", contextlib.nullcontext)
        stage.trainer(stage.config(**stage.base | {"shard": True, key: True}))
    assert asked == [key == "shard_offload"]


def a_server_that_is_not_there(stage: Stage, key: str) -> None:
    """That one is asked for rollouts shows by its refusal."""
    settings = {"adapter_scope": "sequence", key: {"engine": "vllm", "url": "http://127.0.0.1:9"}}
    trainer = stage.trainer(stage.config(**stage.base | settings), judge, tiny_model(), tiny_tokenizer())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patience, "FIRST_WAIT", 0.01)
        with pytest.raises(InputError, match=r"the rollout server http://127.0.0.1:9/v1/completions failed"):
            trainer.ppo_step(PROMPTS)


def a_policy_that_runs_away(stage: Stage, key: str) -> None:
    far = {"steps": 4, "learning_rate": 0.1}
    stage.seen(far)
    with pytest.raises(DivergedError, match=r"beyond max_kl 0\.001 for 3 steps in a row"):
        stage.seen(far | {key: 0.001})


# -------------------------------------------------------------------------------------------------------- the tables

MODEL = {
    "model_name": another_model,
    "revision": a_version_on_the_hub,
    "device": a_device_that_is_none,
    "dtype": number_format,
    "quantize": a_library_that_is_missing,
    "shard": layers_among_two,
    "shard_offload": layers_among_two,
    "lora_r": seen(4, "start"),
    "lora_layers": seen(1, "start"),
    "lora_target_modules": seen(["q_proj", "v_proj"], "start"),
}
RUN = {
    "save_every": in_run(0, "checkpoints"),
    "save_minutes": in_run(1e-9, "checkpoints", save_every=0),
    "keep_checkpoints": in_run(1, "checkpoints", steps=4),
    "run_dir": in_run("elsewhere", "run_dir", "elsewhere"),
    "run_name": in_run("mine", "run_name", "mine"),
    "num_eval_prompts": in_run(3, "held out"),
}
TRAIN = MODEL | RUN | {
    "recipe": seen("tether", "1 prompts", "1 advantage"),
    # ---- start
    "sft": seen("sft", "start", "1 action"),
    "value_from_reward": seen(True, "start", "1 value", reward=[{"kind": "model", "path": "reward"}]),
    "lora_alpha": seen(8, "1 value model", "1 policy"),
    "lora_dropout": unseen(0.5, "dropout"),  # PPO leaves it off; it goes into the files of the adapters
    "adapter_scope": seen("sequence", "1 value model", "1 policy"),
    "seed": both(seen(7, "start", "1 prompts", "1 action"), in_run(7, "held out")),
    # ---- rollout
    "chat_template": seen(True, "1 action"),
    "system_prompt": seen("be brief", "1 action", chat_template=True),
    "max_new_tokens": seen(3, "1 action"),
    "temperature": seen(0.5, "1 action"),
    "top_k": seen(3, "1 action"),
    "top_p": seen(0.5, "1 action", top_k=258),
    "rollout": a_server_that_is_not_there,
    # ---- reward and KL
    "reward": in_run("length_band", "reward parts"),
    "reward_timeout": in_run(7.0, "reward seconds", {7.0}),
    "kl_coef": seen(0.5, "2 reward"),  # in the first step there is no distance to pay for
    "kl_in": seen("both", "2 reward", kl_in="loss", kl_estimator="exact"),
    "kl_estimator": both(*(seen(e, "1 policy", "2 kl", kl_in="loss", kl_estimator="k2") for e in ("k3", "exact"))),
    "adaptive_kl_target": seen(0.5, "2 reward", adaptive_kl_horizon=10),
    "adaptive_kl_horizon": seen(10, "2 reward", adaptive_kl_target=0.5),
    "reward_against": seen("start", "1 reward"),
    "reward_shape": seen("sigmoid", "1 reward", reward_against="start"),
    "reward_clip": seen(0.1, "1 reward"),
    "overlong_tokens": seen(2, "1 reward"),
    "overlong_penalty": seen(0.5, "1 reward", overlong_tokens=2),
    "stop_token_penalty": seen(1.0, "1 reward"),
    "whiten_rewards": seen(True, "1 reward"),
    # ---- credit
    "gamma": seen(0.8, "1 advantage", "1 returns", "2 td_error"),
    "lam": seen(0.5, "1 advantage"),
    "baseline": seen("tether", "1 advantage", responses_per_prompt=2),
    "value_target": seen("gae", "1 returns"),
    "value_lam": seen(0.5, "1 returns", value_target="gae"),
    "value_range": seen((-1.0, 2.0), "1 value"),
    "value_reads_reference": seen(True, "1 value model", "2 value"),
    # ---- update
    "whiten_advantages": seen(False, "1 policy"),
    "steps": seen(3, "2 value model", "2 policy"),  # over which the learning rates decay
    "lr_schedule": seen("constant", "2 value model", "2 policy"),
    "batch_size": seen(8, "1 prompts"),
    "responses_per_prompt": seen(2, "1 prompts"),
    "value_epochs": seen(3, "1 value model"),
    "value_warmup_epochs": seen(3, "1 value model", value_warmup_steps=1),
    "policy_loss": both(*(seen(kind, "1 policy") for kind in ("dppo", "cispo"))),
    "clip_high": seen(0.01, "1 policy"),
    "dual_clip": seen(1.01, "1 policy"),
    "entropy_coef": seen(0.5, "1 policy"),
    "aggregate": both(*(seen(way, "1 policy", max_new_tokens=40, batch_size=8) for way in ("sequences", "constant"))),
    "mini_batch_size": seen(2, "1 value model", "1 policy"),
    "epochs": seen(3, "1 value model", "1 policy"),
    "learning_rate": both(seen(5e-3, "1 policy"), seen(5e-3, "1 policy", lr_schedule="constant")),
    "value_learning_rate": both(seen(5e-3, "1 value model"), seen(5e-3, "1 value model", lr_schedule="constant")),
    "clip_epsilon": seen(0.05, "1 policy"),
    "value_clip": seen(0.01, "1 value model"),
    "value_warmup_steps": seen(1, "1 value model", "1 policy"),  # in which nothing is clipped
    "target_kl_stop": seen(0.001, "1 policy"),
    "max_grad_norm": seen(0.1, "1 value model", "1 policy"),
    "max_kl": a_policy_that_runs_away,
    # ---- memory
    "prompt_cache_mb": unseen(0, "kept prompts"),
    "micro_batch_size": unseen(1, "passes"),
    "activation_mb": unseen(1, "passes", max_new_tokens=40, batch_size=8),
    # ---- the run
    "prompts": in_run("other_prompts.jsonl", "training prompts"),
    "eval_prompts": in_run("other_prompts.jsonl", "held out"),
    "fields": in_run({"prompt": "question"}, "refused", prompts="renamed_prompts.jsonl"),
    "skip_bad": in_run(True, "refused", prompts="bad_prompts.jsonl"),
    "eval_reward": in_run("length_band", "second reward", True),
    "samples_per_step": in_run(1, "samples", 2),
    "best_of": in_run(3, "best of", 3),
    "tracker": in_run("trackio", "tracked", ["init", "log", "log", "finish"]),
}  # fmt: skip
LEARNING = MODEL | RUN | {
    "lora_alpha": seen(8, "weights"),
    "lora_dropout": seen(0.5, "weights"),
    "adapter_scope": seen("sequence", "weights"),
    "seed": both(seen(7, "start", "first loss"), in_run(7, "held out")),
    "chat_template": seen(True, "first loss"),
    "system_prompt": seen("be brief", "first loss", chat_template=True),
    "max_new_tokens": seen(4, "first loss"),
    "epochs": seen(2, "weights"),
    "batch_size": seen(4, "first loss"),
    "learning_rate": seen(5e-3, "weights"),
    "max_grad_norm": seen(0.01, "weights"),
    "prompt_cache_mb": unseen(0, "kept prompts"),
    "micro_batch_size": unseen(1, "passes"),
    "activation_mb": unseen(1, "passes", max_new_tokens=60, batch_size=8),
    "keep_checkpoints": in_run(1, "checkpoints"),
}  # fmt: skip
SFT = LEARNING | {
    "demonstrations": in_run("other_demonstrations.jsonl", "training prompts"),
    "eval_demonstrations": in_run("other_demonstrations.jsonl", "held out"),
    "fields": in_run({"prompt": "question"}, "refused", demonstrations="renamed_demonstrations.jsonl"),
    "skip_bad": in_run(True, "refused", demonstrations="bad_demonstrations.jsonl"),
}
REWARD = LEARNING | {
    "preferences": in_run("other_preferences.jsonl", "training prompts"),
    "eval_preferences": in_run("other_preferences.jsonl", "held out"),
    "scores": in_run("scores.jsonl", "data", ["preference", "scored"]),
    "fields": in_run({"prompt": "question"}, "refused", preferences="renamed_preferences.jsonl"),
    "skip_bad": in_run(True, "refused", preferences="bad_preferences.jsonl"),
    "sft": seen("sft", "start"),
    "num_centring_prompts": seen(0, "scores"),
    "temperature": seen(0.1, "scores"),
    "top_k": seen(1, "scores"),
    "top_p": seen(0.1, "scores"),
}
TABLES = {"train": TRAIN, "sft": SFT, "reward": REWARD}


@pytest.mark.parametrize(("stage", "key"), [(name, key) for name, s in STAGES.items() for key in s.config.model_fields])
def test_every_key_reaches_what_it_configures(stage, key):
    assert key in TABLES[stage], f"nothing would notice if {key} got lost on its way; add a line to the tables above"
    TABLES[stage][key](STAGES[stage], key)


@pytest.mark.parametrize("stage", STAGES)
def test_every_line_of_a_table_is_a_key(stage):
    assert TABLES[stage].keys() <= STAGES[stage].config.model_fields.keys()


def test_credit_is_counted_with_the_gamma_and_lambda_of_the_config():
    """Each of the three: one that had a gamma of its own would show nowhere but here."""
    trainer = tiny_trainer(judge, gamma=0.9, lam=0.7)
    perturb(trainer)
    pairs = trainer.ppo_step(PROMPTS)["sa_pairs"]
    assert pairs["value"].abs().max() > 0.1
    torch.testing.assert_close(pairs["td_error"], maths.td_errors(pairs["reward"], pairs["value"], 0.9))
    torch.testing.assert_close(pairs["advantage"], maths.gae_advantages(pairs["td_error"], 0.9, 0.7))
    torch.testing.assert_close(pairs["returns"], maths.reward_to_go(pairs["reward"], 0.9))


def test_the_seed_reaches_every_stream_of_random_numbers():
    trainer = tiny_trainer(judge, seed=7)
    assert trainer.sampling_generator.initial_seed() == trainer.model_trainer.order.initial_seed() == 7
