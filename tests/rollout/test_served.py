"""Rollouts from a server: what is asked of it, what is made of its answers, and what its bad days do to a run."""

import gc
import json
import re
import time
from pathlib import Path

import pytest
import torch
import yaml

from burnish import DivergedError, InputError, PPOConfig, PPOTrainer, TrainConfig
from burnish.config.rollout_config import ServedRollout
from burnish.errors import ResourceError
from burnish.evaluation.measure import evaluate
from burnish.ppo.training import PolicyLoss
from burnish.rollout.sampling import Sampler
from burnish.sa_pairs.table import SAPairs
from burnish.services import patience
from burnish.stages.trusted import all_deeds
from failures import log_of, make_workplace
from stand_in_server import MODEL, StandInServer
from tiny import PROMPTS, count_vowels, perturb, tiny_config, tiny_model, tiny_tokenizer

ROOT = Path(__file__).parents[2]
KEY = "sk-very-secret-0123"
SERVED = {"adapter_scope": "sequence", "top_k": 0, "top_p": 1.0}


@pytest.fixture(scope="module")
def one():
    started = StandInServer(tiny_model())
    yield started
    started.stop()


@pytest.fixture
def server(one, monkeypatch):
    monkeypatch.setattr(patience, "FIRST_WAIT", 0.01)
    one.reset()
    return one


def served(server, **rollout):
    return SERVED | {"rollout": {"engine": "vllm", "url": server.url, "model": MODEL} | rollout}


def trainer_of(server, config=None, **rollout):
    settings = served(server, **rollout) | (config or {})
    return PPOTrainer(tiny_config(**settings), count_vowels, tiny_model(), tiny_tokenizer())


def responses_asked(server):
    """Without the probe."""
    return [body for body in server.asked if body["model"] != MODEL]


# -------------------------------------------------------------------------------------------------------------- a step


def test_a_step_learns_from_what_the_server_said(server):
    trainer = trainer_of(server)
    results = trainer.ppo_step(PROMPTS)
    pairs = results["sa_pairs"]
    said = {tuple(b["prompt"]): server.respond(b | {"model": MODEL}) for b in responses_asked(server)}
    for row, prompt in enumerate(trainer.generator.encoder.encode(PROMPTS)):
        choice = said[tuple(prompt)]  # the first adapter is zero: the base itself
        own = pairs.mask[row]
        assert pairs["action"][row][own].tolist() == choice["token_ids"]
        assert pairs["sampler_logprob"][row][own].tolist() == pytest.approx(choice["logprobs"]["token_logprobs"])
        assert bool(pairs.finished[row]) == (choice["token_ids"][-1] == 256)
    assert 0 < results["sampler_gap"] < 1e-4
    assert results["weight_cut"] == 0.0
    assert results["first_ratio_error"] < 1e-4


def test_each_version_of_the_policy_has_a_name_and_a_folder_of_its_own(server):
    trainer = trainer_of(server)
    perturb(trainer)
    for _ in range(3):
        assert trainer.ppo_step(PROMPTS)["sampler_gap"] < 1e-4  # the adapter is the one that is being trained
    names = [body["lora_name"] for body in server.loaded]
    assert [name.split("-")[1] for name in names] == ["v0", "v2", "v4"]  # two updates a step
    assert len({body["lora_path"] for body in server.loaded}) == 3
    assert server.unloaded == names[:2]
    assert list(server.adapters) == names[2:]
    folders = [Path(body["lora_path"]) for body in server.loaded]
    assert [folder.exists() for folder in folders] == [False, False, True]
    del trainer
    gc.collect()
    assert server.unloaded == names
    assert not folders[-1].parent.exists()


def test_a_request_leaves_nothing_to_the_servers_own_defaults(server):
    trainer = trainer_of(server, {"temperature": 0.7})
    trainer.ppo_step(PROMPTS)
    body = responses_asked(server)[0]
    assert body["stop_token_ids"] == [256]
    assert {key: body[key] for key in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")} == {
        "temperature": 0.7, "top_k": -1, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0,
    }  # fmt: skip
    assert len({body["seed"] for body in responses_asked(server)}) == len(PROMPTS)


def test_an_adapter_that_the_server_does_not_use_stops_the_run_before_the_update(server):
    trainer = trainer_of(server)
    perturb(trainer)
    server.is_stale = True
    before = [p.detach().clone() for p in trainer.policy.parameters()]
    with pytest.raises(DivergedError, match=r"log-probabilities differ by .* \(limit 0\.01\).*rollout\.max_gap"):
        trainer.ppo_step(PROMPTS)
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.policy.parameters(), strict=True))


@pytest.mark.parametrize(("correction", "weights"), [("truncate", [2.0, 0.25, 1.5]), ("mask", [0.0, 0.0, 1.5])])
def test_a_tokens_loss_counts_as_much_as_training_finds_it_likelier(correction, weights):
    """Ratios 4, 1/4 and 3/2 to the sampler, bounded by 2; the loss of ratio 1 and advantage 1 is -1."""
    keys = ("prompt_id", "logprob_policy", "logprob_sampler", "advantage")
    ratios = torch.tensor([4.0, 0.25, 1.5])
    rows = [(n, -1.0, -1.0 - float(r.log()), 1.0) for n, r in enumerate(ratios)]
    pairs = SAPairs.from_dicts([dict(zip(keys, row, strict=True)) for row in rows])
    logprob = pairs["logprob"].clone().requires_grad_()
    how = ServedRollout(engine="vllm", url="http://a", correction=correction, largest_weight=2.0)
    loss, statistics = PolicyLoss(0.2, served=how)(pairs, logprob)
    loss.backward()
    torch.testing.assert_close(-logprob.grad[:, 0], torch.tensor(weights))
    assert loss.item() == pytest.approx(-sum(weights))
    assert statistics["weight_cut"] == (1 if correction == "truncate" else 2, 3)
    plain, _ = PolicyLoss(0.2)(pairs, logprob)  # half precision has the column too, and is not corrected
    assert plain.item() == pytest.approx(-3.0)


def test_held_out_answers_need_no_server(server):
    settings = served(server) | {"rollout": {"engine": "vllm", "url": "http://127.0.0.1:9", "token_env": "NOT_SET"}}
    trainer = PPOTrainer(tiny_config(**settings), count_vowels, tiny_model(), tiny_tokenizer())
    assert len(evaluate(trainer, PROMPTS).texts) == len(PROMPTS)


def test_it_samples_from_the_whole_vocabulary_alone(server):
    trainer = trainer_of(server)
    for sampler in (Sampler(greedy=True), Sampler(top_k=5)):
        with pytest.raises(InputError, match="whole vocabulary"):
            trainer.server.generate(trainer.policy, [[1]], 4, sampler)


# --------------------------------------------------------------------------------------------------------- the start


def test_another_base_is_refused_with_the_numbers(server):
    trainer = PPOTrainer(tiny_config(**served(server)), count_vowels, tiny_model(seed=1), tiny_tokenizer())
    with pytest.raises(InputError, match=r"serves another base than .* 48 tokens .* differ by \d.* and may by 0\.01"):
        trainer.train(PROMPTS)
    assert server.loaded == []


def test_log_probabilities_from_before_the_temperature_are_refused(server):
    server.is_raw = True
    with pytest.raises(InputError, match="--logprobs-mode processed_logprobs, or set temperature: 1"):
        trainer_of(server, {"temperature": 0.7}).ppo_step(PROMPTS)
    trainer_of(server).ppo_step(PROMPTS)  # at temperature 1 they are the same


def test_a_server_that_is_not_there_or_has_another_name_is_told_at_once(server):
    with pytest.raises(InputError, match=r"answered 404 .*'other' the name of its model"):
        trainer_of(server, model="other").ppo_step(PROMPTS)
    with pytest.raises(InputError, match=r"refused.* Is the server running"):
        trainer_of(server, url="http://127.0.0.1:9").ppo_step(PROMPTS)


def test_a_server_that_takes_no_adapters_is_told_what_it_needs(server, monkeypatch):
    monkeypatch.setattr(server, "load", lambda name, folder: 1 / 0)
    monkeypatch.setattr(server, "handle_error", lambda *_: None)
    with pytest.raises(InputError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"):
        trainer_of(server).ppo_step(PROMPTS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"adapter_scope": "response"}, "acts on the response alone; set adapter_scope: sequence"),
        ({"top_k": 50}, "could not be scored as they were sampled; set top_k: 0 and top_p: 1"),
        ({"rollout": {"engine": "vllm"}}, r"rollout\.url: is missing"),
        ({"rollout": {"engine": "sglang", "url": "http://a"}}, r"rollout\.engine: Input should be 'vllm'"),
        ({"rollout": {"engine": "vllm", "url": "http://me:hunter2@a"}}, "token_env"),
        ({"rollout": {"engine": "vllm", "url": []}}, "at least one address"),
        ({"rollout": {"engine": "vllm", "url": ["http://a", "http://a"]}}, "given twice"),
        ({"rollout": {"engine": "vllm", "url": "http://a", "adapter_dir": "here"}}, "must be absolute"),
        (
            {"rollout": {"engine": "vllm", "url": "http://a", "retry": 3}},
            r"rollout\.retry: unknown key; did you mean 'retries'\?",
        ),
        ({"rollout": "http://a"}, "rollout: takes a mapping such as"),
    ],
)
def test_configs_that_cannot_be(settings, message):
    with pytest.raises(InputError, match=message) as caught:
        tiny_config(**SERVED | {"rollout": {"engine": "vllm", "url": "http://a"}} | settings)
    assert "hunter2" not in str(caught.value)


def test_the_example_in_the_docs_is_a_config():
    examples = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "scaling.md").read_text(), re.DOTALL)
    (example,) = (own for own in examples if "rollout" in own)
    assert PPOConfig(**yaml.safe_load(example)).rollout.urls == ["http://127.0.0.1:8000"]


def test_the_key_comes_from_the_environment_and_goes_nowhere_else(server, monkeypatch):
    monkeypatch.delenv("MY_SERVER", raising=False)
    with pytest.raises(InputError, match="needs its token in the environment variable MY_SERVER"):
        trainer_of(server, token_env="MY_SERVER").ppo_step(PROMPTS)
    monkeypatch.setenv("MY_SERVER", KEY)
    trainer_of(server, token_env="MY_SERVER").ppo_step(PROMPTS)
    assert set(server.keys) == {f"Bearer {KEY}"}


def test_a_stranger_has_to_ask_for_it(server):
    config = TrainConfig(prompts="bundled:tldr", **served(server, token_env="MY_SERVER", adapter_dir="/shared"))
    deeds = list(all_deeds(config, Path()))
    assert any(f"send prompts to {server.url}" in deed and "MY_SERVER" in deed for deed in deeds)
    assert "write adapters into /shared" in deeds


# ----------------------------------------------------------------------------------------------------------- bad days


@pytest.mark.parametrize(
    "failure",
    ["503", "429", "hang up", "fewer tokens", "no log-probabilities", "no JSON", "lose the adapters", "take too long"],
)
@pytest.mark.filterwarnings("ignore:.*asked again")
def test_a_server_that_fails_is_asked_again_for_the_same_responses(server, failure):
    expected = trainer_of(server).ppo_step(PROMPTS)["generated_texts"]
    trainer = trainer_of(server, timeout=0.8 if failure == "take too long" else 30)
    trainer.server.check(trainer.policy)
    server.failures = [None, failure]
    assert trainer.ppo_step(PROMPTS)["generated_texts"] == expected
    assert server.failures == []


@pytest.mark.filterwarnings("ignore:.*asked again")
def test_a_server_that_stays_away_ends_the_step_with_nothing_learned(server):
    trainer = trainer_of(server, retries=2)
    trainer.ppo_step(PROMPTS)
    before = [p.detach().clone() for p in trainer.policy.parameters()]
    server.failures = ["503"] * 100
    with pytest.raises(ResourceError, match=r"answered 503 .* asked 2 times more\. The last checkpoint is intact"):
        trainer.ppo_step(PROMPTS)
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.policy.parameters(), strict=True))
    server.failures = []
    trainer.ppo_step(PROMPTS)  # it is back


@pytest.mark.parametrize("status", ["400", "401"])
def test_what_asking_again_cannot_mend_is_told_at_once(server, status):
    trainer = trainer_of(server, at_once=1)
    trainer.server.check(trainer.policy)
    server.asked.clear()
    server.failures = [status]
    with pytest.raises(InputError, match=f"answered {status} .*not today"):
        trainer.ppo_step(PROMPTS)
    assert len(server.asked) == 1


@pytest.mark.filterwarnings("ignore:.*asked again")
def test_servers_share_a_step_and_stand_in_for_each_other(server):
    expected = trainer_of(server).ppo_step(PROMPTS)["generated_texts"]
    other = StandInServer(tiny_model())
    try:
        trainer = trainer_of(server, url=[server.url, other.url])
        assert trainer.ppo_step(PROMPTS)["generated_texts"] == expected
        assert len(responses_asked(other)) == 4
    finally:
        other.stop()
    server.reset()  # the other has gone, and this one has been restarted
    assert len(trainer.ppo_step(PROMPTS)["generated_texts"]) == 8
    assert [name.split("-")[1] for name in server.adapters] == ["v2"]


def test_a_run_resumes_in_the_same_state(server):
    """Here the server gives the same answers again, so the next step is the same too."""
    first, other = trainer_of(server), trainer_of(server)
    first.ppo_step(PROMPTS)
    other.generator.agree_on_invocation(PROMPTS)
    other.restore(first.state())
    ours, theirs = first.ppo_step(PROMPTS), other.ppo_step(PROMPTS)
    assert ours["generated_texts"] == theirs["generated_texts"]
    assert ours["policy_loss"] == pytest.approx(theirs["policy_loss"], abs=1e-7)


def test_a_run_whose_server_dies_ends_clearly_and_resumes_when_it_is_back(server, fork_server, tmp_path):
    folder = make_workplace(tmp_path / "work")
    settings = yaml.safe_load((folder / "config.yaml").read_text()) | served(server, retries=1)
    settings |= {"save_every": 1, "steps": 3, "best_of": 1}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    server.failures = [None] * 2 + [None] * 4 + ["hang up"] * 100  # a greeting, the probe, a step of four
    ended = fork_server.run(folder, "train", "config.yaml", "run_name=served")
    assert ended.code == 6, ended.text
    assert "The last checkpoint is intact" in ended.text
    assert "it is asked again" in ended.text
    run = folder / "runs" / "served"
    assert [row["step"] for row in log_of(run)[0]] == [1]
    server.reset()
    resumed = fork_server.run(folder, "resume", run)
    assert resumed.code == 0, resumed.text
    assert "Resuming after step 1 of 3. The state is exactly that of the checkpoint" in resumed.text
    rows = log_of(run)[0]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(row["sampler_gap"] < 1e-4 for row in rows)
    columns = json.loads((run / "samples.jsonl").read_text().splitlines()[-1])
    assert "logprob_sampler" in json.dumps(columns)


def test_a_run_without_its_server_ends_before_the_model_is_loaded(server, fork_server, tmp_path):
    folder = make_workplace(tmp_path / "work")
    settings = yaml.safe_load((folder / "config.yaml").read_text()) | served(server, url="http://127.0.0.1:9")
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    started = time.monotonic()
    ended = fork_server.run(folder, "train", "config.yaml")
    assert (ended.code, "Is the server running" in ended.text) == (2, True), ended.text
    assert "loading" not in ended.text.lower()
    assert time.monotonic() - started < 20
