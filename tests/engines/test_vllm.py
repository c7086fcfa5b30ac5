"""Rollouts from a real vLLM server, with a tiny model. `make test-engines` installs vLLM and runs these."""

import http.client
import json
from urllib.parse import urlsplit

import pytest
from transformers import AutoModelForCausalLM

from burnish import InputError, PPOTrainer
from burnish.errors import ResourceError
from burnish.services.service import Service
from tiny import PROMPTS, count_vowels, perturb, tiny_config, tiny_tokenizer
from vllm_server import is_installed

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not is_installed(), reason="vLLM is not installed; `make test-engines` installs it"),
]


def trainer_of(server, folder, model=None, **changes):
    rollout = {"engine": "vllm", "url": server.url, "model": server.model}
    settings = {"adapter_scope": "sequence", "top_k": 0, "top_p": 1.0, "rollout": rollout} | changes
    model = model or AutoModelForCausalLM.from_pretrained(folder)
    return PPOTrainer(tiny_config(**settings), count_vowels, model, tiny_tokenizer())


def adapters_on(server):
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc)
    connection.request("GET", "/v1/models")
    names = [model["id"] for model in json.loads(connection.getresponse().read())["data"]]
    connection.close()
    return [name for name in names if name != server.model]


def test_its_tokens_are_scored_as_it_scored_them(server, folder):
    trainer = trainer_of(server, folder, max_new_tokens=12)
    perturb(trainer)
    for version in (0, 2):  # two updates a step
        results = trainer.ppo_step(PROMPTS)
        pairs = results["sa_pairs"]
        assert 0 < results["sampler_gap"] < 1e-3
        assert (pairs["logprob"] - pairs["ref_logprob"]).abs().max() > 0.1  # its adapter says something else
        assert [name.split("-")[1] for name in adapters_on(server)] == [f"v{version}"]
        for row, ids in enumerate(pairs["action"]):
            last = int(ids[pairs.mask[row]][-1])
            assert bool(pairs.finished[row]) == (last in trainer.base.stop_ids)
            assert pairs.finished[row] or int(pairs.lengths[row]) == 12


def test_a_toy_reward_rises_as_it_does_with_the_local_decoder(server, folder):
    """Share of vowels among the bytes written."""
    settings = {"steps": 25, "batch_size": 32, "epochs": 3, "kl_coef": 0.01}
    settings |= {"learning_rate": 1e-2, "value_learning_rate": 1e-2}

    def gain(trainer):
        history = trainer.train(PROMPTS)
        rewards = [step["reward"] for step in history]
        return sum(rewards[-4:]) / 4 - sum(rewards[:4]) / 4, history

    served, history = gain(trainer_of(server, folder, **settings))
    local, _ = gain(trainer_of(server, folder, **settings, rollout=None))
    gap = max(step["sampler_gap"] for step in history)
    print(f"reward by {served:.3f} with vLLM, by {local:.3f} with the local decoder; largest gap {gap:.1e} nats")
    assert served > max(0.05, 0.5 * local)  # the two draw different responses
    assert gap < 1e-3
    assert max(step["weight_cut"] for step in history) == 0.0


def test_an_adapter_that_it_has_lost_is_given_to_it_again(server, folder):
    trainer = trainer_of(server, folder)
    trainer.server.check(trainer.policy)
    name = trainer.server.servers[0]._adapter.name
    assert name in adapters_on(server)
    Service(f"{server.url}/v1/unload_lora_adapter").tell({"lora_name": name})
    with pytest.warns(UserWarning, match="answered 404"):
        assert trainer.ppo_step(PROMPTS)["sampler_gap"] < 1e-3
    assert name in adapters_on(server)


def test_another_base_is_refused(server, folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.model.layers[1].mlp.down_proj.weight.data *= 1.2
    with pytest.raises(InputError, match="serves another base"):
        trainer_of(server, folder, model=model).train(PROMPTS)


def test_another_temperature_needs_its_own_log_probabilities(server, folder):
    with pytest.raises(InputError, match="--logprobs-mode processed_logprobs"):
        trainer_of(server, folder, temperature=0.7).train(PROMPTS)


def test_an_adapter_that_it_cannot_take_is_refused_at_the_start(server, folder):
    with pytest.raises(InputError, match=r"rank.*--max-lora-rank"):
        trainer_of(server, folder, lora_r=16).train(PROMPTS)


@pytest.mark.filterwarnings("ignore:.*asked again")
def test_its_death_ends_the_step(server, folder):
    """The last test: nobody brings it back."""
    rollout = {"engine": "vllm", "url": server.url, "model": server.model, "retries": 1}
    trainer = trainer_of(server, folder, rollout=rollout)
    trainer.ppo_step(PROMPTS)
    server.kill()
    with pytest.raises(ResourceError, match="The last checkpoint is intact"):
        trainer.ppo_step(PROMPTS)
