"""Bad rewards cost a response, bad numbers stop before a weight changes, scarce memory costs time (R11 to R13)."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

from burnish import DivergedError, InputError, PPOTrainer, cli
from burnish.config import SFTConfig
from burnish.data import Demonstration, Prompt, places_of
from burnish.errors import ResourceError
from burnish.models.updates import Updates
from burnish.ppo.guards import RunawayGuard
from burnish.runs.run import Run
from burnish.runs.saving import hold
from burnish.supervised.sft_trainer import SFTTrainer
from failures import (
    log_of,
    make_workplace,
    waiting_for,
)
from tiny import PROMPTS, tiny_config, tiny_model, tiny_tokenizer, tiny_trainer, watch_loss


@pytest.mark.parametrize(
    ("body", "message", "calls"),
    [
        ("return [float('nan') if x == bad else 1.0 for x in r]", "nan", 2),
        ("return [float('inf') if x == bad else 1.0 for x in r]", "inf", 2),
        ("return [None if x == bad else 1.0 for x in r]", "None, not a number", 2),
        ("return ['good' if x == bad else 1.0 for x in r]", "'good', not a number", 2),
        ("return [1.0] * (len(r) - (bad in r))", "values for", 10),
        ("assert bad not in r; return [1.0] * len(r)", "AssertionError", 10),
    ],
)
def test_r11_a_response_that_cannot_be_scored_is_left_out(body, message, calls):
    """Named, asked again, then left out: never in the loss, never scored 0."""
    seen = []

    def judge(prompts, r):
        seen.append(list(r))
        if len(seen) == 1:
            judge.bad = r[3]
        bad = judge.bad
        return eval_body(body, r, bad)

    trainer = tiny_trainer(judge)
    with pytest.warns(UserWarning, match=rf"response 3 is left out.*{re.escape(message)}"):
        results = trainer.ppo_step(PROMPTS)
    assert len(seen) == calls  # asked and asked again; if that failed altogether, for each of the eight alone
    assert len(results["rewards"]) == results["sa_pairs"].mask.shape[0] == len(PROMPTS) - 1
    assert judge.bad not in results["generated_texts"]


def eval_body(body, r, bad):
    namespace = {}
    exec("def f(r, bad):\n    " + body, namespace)
    return namespace["f"](r, bad)


def write_others(folder):
    """Prompts to train on that are none of those measured on."""
    (folder / "others.jsonl").write_text("\n".join(json.dumps({"prompt": f"number {i}:"}) for i in range(20, 30)))


def test_r11_held_out_answers_that_cannot_be_scored_are_left_out(fork_server, folder):
    (folder / "picky.py").write_text(
        "def f(p, r):\n    return [float('nan') if x.startswith('number 1') else float(len(y)) for x, y in zip(p, r)]\n"
    )
    rows = [{"prompt": f"number {i}:"} for i in (1, 2, 3, 4)]
    (folder / "held_out.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_others(folder)
    settings = ("prompts=others.jsonl", "eval_prompts=held_out.jsonl", "num_eval_prompts=0", "reward=picky.py:f")
    outcome = fork_server.run(folder, "train", "config.yaml", "run_name=picky", *settings)
    assert outcome.code == 0, outcome.text
    answers = json.loads((folder / "runs" / "picky" / "verdict.json").read_text())["answers"]
    assert [a["prompt"] for a in answers] == ["number 2:", "number 3:", "number 4:"]


def test_r11_a_held_out_answer_without_a_score_does_not_end_the_run(fork_server, folder):
    """Not even if it is alone in the last batch of the measurement."""
    (folder / "fifth.py").write_text(
        "def f(p, r):\n    return [float('nan') if x == 'number 5:' else float(len(y)) for x, y in zip(p, r)]\n"
    )
    write_others(folder)
    (folder / "five.jsonl").write_text("\n".join(json.dumps({"prompt": f"number {i}:"}) for i in range(1, 6)))
    settings = ("prompts=others.jsonl", "eval_prompts=five.jsonl", "num_eval_prompts=0", "reward=fifth.py:f")
    outcome = fork_server.run(folder, "train", "config.yaml", "run_name=fifth", "steps=2", *settings)
    assert outcome.code == 0, outcome.text
    assert "1 held-out answers have no reward" in outcome.text
    answers = json.loads((folder / "runs" / "fifth" / "verdict.json").read_text())["answers"]
    assert [a["prompt"] for a in answers] == [f"number {i}:" for i in range(1, 5)]
    (folder / "fifth.py").write_text(
        "def f(p, r):\n    return [float('nan') if x[7:] in '1:2:3:' else float(len(y)) for x, y in zip(p, r)]\n"
    )
    outcome = fork_server.run(folder, "train", "config.yaml", "run_name=most", *settings)
    assert outcome.code == 2
    assert "more than half of the responses could not be scored: reward f, response 0 is nan" in outcome.text
    settings = (*settings[:-1], "reward=judge.py:score", "eval_reward=fifth.py:f")
    outcome = fork_server.run(folder, "train", "config.yaml", "run_name=second", *settings)
    assert outcome.code == 2
    assert "more than half of the responses could not be scored" in outcome.text
    assert not (folder / "runs" / "second" / "metrics.jsonl").exists()  # found before the first step


def test_r11_rewards_of_tokens_as_many_as_there_are():
    """A response with too many or too few, or with one number where others have lists, is left out alone."""
    odd = {1: lambda tokens: [0.0] * (len(tokens) + 1), 4: lambda tokens: 0.5}

    def judge(prompts, responses, tokens):
        rows = [PROMPTS.index(p) for p in prompts]
        return [odd.get(row, lambda t: [0.1] * len(t))(t) for row, t in zip(rows, tokens, strict=True)]

    with pytest.warns(UserWarning, match=r"response \d is left out.*per-token rewards need one each"):
        results = tiny_trainer(judge).ppo_step(PROMPTS)
    assert results["left_out"] == 2
    assert results["prompts"] == [p for n, p in enumerate(PROMPTS) if n not in odd]


def test_r11_a_hanging_function_is_cut_at_the_time_limit(tmp_path):
    (tmp_path / "hang.py").write_text(
        "import time\ndef f(prompts, responses):\n"
        "    if len(prompts) > 1 or prompts[0] == 'go:':\n        time.sleep(1000)\n"
        "    return [1.0 + len(x) for x in responses]\n"
    )
    config = tiny_config(reward=f"{tmp_path}/hang.py:f", reward_timeout=1.0)
    trainer = PPOTrainer(config, None, tiny_model(), tiny_tokenizer())
    started = time.monotonic()
    with pytest.warns(UserWarning, match=r"response 6 is left out.*took more than 1 s"):
        results = trainer.ppo_step(PROMPTS)
    assert time.monotonic() - started < 60
    assert len(results["rewards"]) == len(PROMPTS) - 1


def test_r11_the_worker_runs_nothing_that_lies_about_and_ends_with_its_trainer(tmp_path):
    (tmp_path / "inspect.py").write_text("raise SystemExit(9)")
    (tmp_path / "spin.py").write_text(
        "import os, time\ndef f(p, r):\n    open('pid', 'w').write(str(os.getpid()))\n    time.sleep(1000)\n"
    )
    script = "from burnish.rewards.isolated import IsolatedFunction as F; F('spin.py:f')(['p'], ['r'])"
    trainer = subprocess.Popen([sys.executable, "-P", "-c", script], cwd=tmp_path)
    waiting_for(tmp_path / "pid")
    worker = int((tmp_path / "pid").read_text())
    os.kill(worker, signal.SIGINT)  # a Ctrl-C reaches it too, and is not for it
    time.sleep(0.2)
    os.kill(worker, 0)
    trainer.kill()
    trainer.wait()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{worker}").exists()


def test_r11_a_reward_that_mostly_fails_ends_the_run():
    with (
        pytest.raises(InputError, match="more than half of the responses could not be scored"),
        pytest.warns(UserWarning, match="left out"),
    ):
        tiny_trainer(lambda p, r: [float("nan")] * len(r)).ppo_step(PROMPTS)


@pytest.mark.parametrize("where", ["policy", "value"])
def test_r12_numbers_that_are_none_stop_before_the_update(where):
    trainer = tiny_trainer()
    trainer.ppo_step(PROMPTS)
    role = trainer.policy if where == "policy" else trainer.value_model
    before = [p.clone() for p in role.parameters()]
    before[0].view(-1)[0] = float("nan")
    with torch.no_grad():
        role.parameters()[0].view(-1)[0] = float("nan")
    message = "policy's logits are not finite" if where == "policy" else r"value of response \d, token \d became nan"
    with pytest.raises(DivergedError, match=message):
        trainer.ppo_step(PROMPTS)
    assert all(torch.equal(a.nan_to_num(9), b.nan_to_num(9)) for a, b in zip(before, role.parameters(), strict=True))


def test_r12_a_gradient_that_is_no_number_stops_too():
    trainer = tiny_trainer()
    weight = trainer.policy.parameters()[1]
    weight.register_hook(lambda grad: grad * float("nan"))
    before = weight.clone()
    with pytest.raises(
        DivergedError,
        match=r"gradient norm became nan \(by response \d\) before update 1 of the policy model; no weight was changed",
    ):
        trainer.ppo_step(PROMPTS)
    assert torch.equal(before, weight)


@pytest.mark.parametrize(
    ("method", "what"), [("values", "value in training"), ("logprobs", "policy's log-probability")]
)
def test_r12_a_number_that_is_none_in_training_names_its_response(monkeypatch, method, what):
    trainer = tiny_trainer(micro_batch_size=2)
    model = trainer.value_model if method == "values" else trainer.policy
    original = getattr(model, method)

    def planted(pairs, *rest):
        result = original(pairs, *rest)
        if torch.is_grad_enabled():  # not in the rollout
            result = result * torch.where(pairs.prompt_mask.sum(1) == longest, torch.nan, 1.0)[:, None]
        return result

    longest = max(map(len, trainer.setup.encoder.encode(PROMPTS)))
    monkeypatch.setattr(model, method, planted)
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(DivergedError, match=rf"{what}.* of response 3, token 0 became nan"):
        trainer.ppo_step(PROMPTS)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_r12_models_that_an_update_ruined_are_not_saved(fork_server, folder):
    settings = (
        "max_kl=null",
        "target_kl_stop=null",
        "save_every=1",
        "mini_batch_size=4",
        "epochs=1",
    )
    outcome = fork_server.run(folder, "train", "config.yaml", "run_name=ruined", *settings, ruinous=True)
    assert outcome.code == 5, outcome.text
    assert "the updates of step 1 ruined the" in outcome.text
    run = folder / "runs" / "ruined"
    assert not list((run / "checkpoints").glob("step-*"))
    assert not (run / "adapters").exists()  # no more than a checkpoint
    assert (run / "diverged-step-1.jsonl").exists()


def test_r12_nor_is_a_supervised_model_that_an_update_ruined(fork_server, folder):
    rows = [{"prompt": f"number {i}:", "completion": "abc"} for i in range(14)]
    (folder / "ruinous.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "sft.yaml").write_text(
        "model_name: model\ndemonstrations: ruinous.jsonl\nnum_eval_prompts: 2\nlora_r: 4\nbatch_size: 4\nepochs: 1\n"
    )
    for name, saves in (("often", "save_every=1"), ("at-the-end", "save_every=0")):
        outcome = fork_server.run(folder, "sft", "sft.yaml", f"run_name={name}", saves, ruinous=True)
        assert outcome.code == 5, outcome.text
        run = folder / "runs" / name
        assert not list((run / "checkpoints").glob("step-*"))
        assert not (run / "adapters").exists()
        assert "There is no checkpoint yet" in outcome.text


def test_a_look_at_the_model_does_not_move_its_dropout():
    """A checkpoint more or less must not change a run."""

    def train(look):
        config = SFTConfig(model_name="tiny", demonstrations="-", lora_r=4, batch_size=4, epochs=1, lora_dropout=0.5)
        trainer = SFTTrainer(config, tiny_model(), tiny_tokenizer())
        rows = [Demonstration(p, "yes") for p in PROMPTS]
        return trainer.train(rows, lambda _: trainer.epochs.sound_state() if look else None)[-1]["loss"]

    assert train(look=True) == train(look=False)


def test_r12_a_supervised_stage_names_the_row():
    config = SFTConfig(model_name="tiny", demonstrations="-", lora_r=4, batch_size=8, epochs=1)
    trainer = SFTTrainer(config, tiny_model(), tiny_tokenizer())

    def poisoned(batch, loss_of):
        loss = loss_of(batch)[0] * (float("nan") if any(len(t.answer) == 4 for t in batch) else 1.0)
        return loss, {"loss": (loss.detach(), 1)}

    watch_loss(trainer, poisoned)
    rows = [Demonstration(p, "yes" if p == PROMPTS[5] else "no") for p in PROMPTS]
    before = [p.clone() for p in trainer.model.parameters()]
    with pytest.raises(
        DivergedError,
        match=r"loss became nan \(by training row 6\) before update 1 of the sft model; no weight",
    ):
        trainer.train(rows)
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    rows[5] = Demonstration(Prompt(PROMPTS[5], "file.jsonl:9"), "yes")
    assert places_of(rows)[5] == "file.jsonl:9"


def test_r12_the_batch_is_kept_and_the_last_good_checkpoint_named(fork_server, folder):
    settings = ("run_name=wild", "max_kl=null", "save_every=1")
    assert fork_server.run(folder, "train", "config.yaml", *settings, kill_at=11).code == -9  # in step 4
    outcome = fork_server.run(folder, "train", "config.yaml", *settings, ruinous=True)
    assert outcome.code == 5, outcome.text
    assert "Traceback" not in outcome.text
    run = folder / "runs" / "wild"
    steps = [int(p.name.removeprefix("step-")) for p in sorted(run.glob("checkpoints/step-*"))]
    assert steps[-1] >= 2
    earlier = ", ".join(map(str, steps[:-1]))
    assert f"last good checkpoint is of step {steps[-1]} (or {earlier}, from before the trouble)" in outcome.text
    assert f"burnish resume {run.relative_to(folder)} --from STEP learning_rate=..." in outcome.text
    assert not (run / "adapters").exists()  # they may be ruined
    (dump,) = run.glob("diverged-step-*.jsonl")
    assert f"The responses of step {dump.stem.rpartition('-')[2]} are in" in outcome.text
    rows = [json.loads(line) for line in dump.read_text().splitlines()]
    assert len(rows) == 4  # the whole batch
    assert all({"response", "tokens", "logprob_policy"} <= set(row) or "prompt" in row for row in rows)


def test_r13_a_runaway_policy_is_stopped(fork_server, folder):
    run = ("train", "config.yaml", "steps=60", "kl_coef=0", "learning_rate=0.1", "max_kl=0.05", "top_k=0", "top_p=1")
    outcome = fork_server.run(folder, *run, "run_name=runaway")
    assert outcome.code == 5, outcome.text
    assert "runs away from its reference. Lower learning_rate" in outcome.text
    logged = [row["kl"] / row["response_tokens"] > 0.05 for row in log_of(folder / "runs" / "runaway")[0]]
    assert logged[-3:] == [False, True, True]  # the third in a row ended it
    early = tiny_trainer(learning_rate=0.1, epochs=4)  # a hundred times the tests' usual, with the default guard
    early.ppo_step(PROMPTS)
    assert early.policy.num_updates < 4  # the epoch was left


def test_r13_a_policy_that_comes_back_in_time_goes_on():
    guard = RunawayGuard(max_kl=1.0)
    for kl in (2.0, 2.0, 0.5, 2.0, 2.0, 1.0, 2.0, 2.0):
        guard.check(kl)
    with pytest.raises(DivergedError, match=r"2\.0 nats per token, beyond max_kl 1 for 3 steps in a row"):
        guard.check(2.0)


def test_r13_a_constant_reward_is_told():
    trainer = tiny_trainer(lambda prompts, responses: [1.0] * len(responses))
    for _ in range(2):
        trainer.ppo_step(PROMPTS)
    with pytest.warns(
        UserWarning, match=r"for 3 steps in a row, every response got the same reward \(1\): PPO has nothing to learn"
    ):
        trainer.ppo_step(PROMPTS)


def test_memory_that_runs_out_while_loading_is_no_traceback(tmp_path, monkeypatch, capsys):
    make_workplace(tmp_path)

    def too_large(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", too_large)
    monkeypatch.setattr("sys.argv", ["burnish", "train", str(tmp_path / "config.yaml"), f"run_dir={tmp_path / 'runs'}"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 6
    assert "memory ran out; end other programs, or choose a smaller model" in capsys.readouterr().err


def test_memory_that_runs_out_in_a_supervised_stage_costs_time_not_the_result():
    def loss(limit):
        config = SFTConfig(model_name="tiny", demonstrations="-", lora_r=4, batch_size=8, epochs=2, lora_dropout=0.0)
        trainer = SFTTrainer(config, tiny_model(), tiny_tokenizer())

        def scarce(batch, loss_of):
            if len(batch) > limit:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
            return loss_of(batch)

        watch_loss(trainer, scarce)
        return trainer.train([Demonstration(p, "yes") for p in PROMPTS])[-1]["loss"]

    plenty = loss(100)
    with pytest.warns(UserWarning, match="a pass takes at most 2 sequences"):
        assert loss(2) == pytest.approx(plenty, abs=1e-6)
    with pytest.raises(ResourceError, match="single sequence"), pytest.warns(UserWarning, match="at most 1 sequences"):
        loss(0)


def test_memory_that_runs_out_anywhere_else_ends_with_advice(tmp_path):
    with (
        pytest.raises(ResourceError, match=r"memory ran out. Lower batch_size.*give the same command again"),
        hold(Console(quiet=True), Run(tmp_path / "run"), SFTConfig(demonstrations="-")),
    ):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")


def test_memory_that_runs_out_costs_time_not_the_result(monkeypatch):
    def losses(limit):
        original = Updates._backward

        def scarce(updates, given, weight, loss_of):
            if given.mask.shape[0] > limit:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
            return original(updates, given, weight, loss_of)

        monkeypatch.setattr(Updates, "_backward", scarce)
        results = tiny_trainer().ppo_step(PROMPTS)
        monkeypatch.undo()
        return results["policy_loss"], results["value_loss"]

    plenty = losses(100)
    with pytest.warns(UserWarning, match="at most 2 sequences"):
        scarce = losses(2)
    assert scarce == pytest.approx(plenty, abs=1e-6)
    with (
        pytest.raises(ResourceError, match="not enough memory"),
        pytest.warns(UserWarning, match="at most 1 sequences"),
    ):
        losses(0)
