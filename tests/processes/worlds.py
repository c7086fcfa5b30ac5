"""The same training in one, two and three processes. A script: it prints, as JSON, what each world has found.

Everything is imported once; the processes of each world are forks.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

torch.set_num_threads(1)  # a fork must not inherit a thread pool
sys.path.insert(0, str(Path(__file__).parents[1]))

from burnish import PPOTrainer  # noqa: E402
from burnish.config import RewardModelConfig, SFTConfig  # noqa: E402
from burnish.data import Demonstration, Preference, Scored  # noqa: E402
from burnish.decoder.base_identity import base_weights  # noqa: E402
from burnish.decoder.quantized import is_sharded  # noqa: E402
from burnish.decoder.sharded import nbytes_here  # noqa: E402
from burnish.errors import BurnishError  # noqa: E402
from burnish.evaluation.measure import evaluate, most_likely_answers  # noqa: E402
from burnish.models.adapter_files import save_adapter  # noqa: E402
from burnish.processes import world  # noqa: E402
from burnish.supervised.reward_trainer import RewardTrainer  # noqa: E402
from burnish.supervised.sft_trainer import SFTTrainer  # noqa: E402
from families import family_model  # noqa: E402
from stand_in_server import MODEL, StandInServer  # noqa: E402
from tiny import PROMPTS, tiny_config, tiny_model, tiny_tokenizer  # noqa: E402

FEW = ("critic", "groups without critic")  # what two processes do; three do everything
PPO: dict[str, dict[str, Any]] = {
    "critic": {"mini_batch_size": 4, "adaptive_kl_target": 1.0},
    "sequence scope, whole vocabulary": {"adapter_scope": "sequence", "top_k": 0, "top_p": 1.0, "whiten_rewards": True},
    "groups without critic": {"recipe": "rloo", "responses_per_prompt": 4, "mini_batch_size": 4},
    "groups with critic": {"baseline": "tether", "responses_per_prompt": 2, "kl_in": "both", "kl_estimator": "exact"},
    "early KL stop": {"mini_batch_size": 2, "target_kl_stop": 1e-4, "learning_rate": 3e-3},
    "a process without rows": {"batch_size": 7, "mini_batch_size": 1, "micro_batch_size": 1, "epochs": 1},
    "fewer prompts than processes": {"batch_size": 2, "recipe": "rloo", "responses_per_prompt": 2},
    "some are left out": {"reward_against": "start", "mini_batch_size": 4},
    "one process has all that is left": {"batch_size": 4, "mini_batch_size": 2},
    "one length at a time": {"adapter_scope": "sequence", "mini_batch_size": 4},
}
SHARDED = ("critic", "groups without critic", "a process without rows", "early KL stop", "one length at a time")
FAILURES = ("decoding", "logits", "training")
LONG = {"max_new_tokens": 16, "lora_layers": 1, "top_k": 20, "top_p": 0.9}  # long enough for some to end, and leave


def score(prompts: list[str], responses: list[str]) -> list[float]:
    """Differs from response to response: of equal rewards nothing but rounding would be learned."""
    return [sum(ord(c) % 64 for c in r) / (32 * max(len(r), 1)) for r in responses]


def scored_without(left_out: list[str], prompts: list[str], responses: list[str]) -> list[float | None]:
    return [None if p in left_out else s for p, s in zip(prompts, score(prompts, responses), strict=True)]


LEFT_OUT: dict[str, tuple[list[str], list[str]]] = {  # a step's prompts, and those that the reward has no number for
    "some are left out": (PROMPTS, PROMPTS[:3]),  # all that the first of three processes has generated
    "one process has all that is left": (PROMPTS[:4], PROMPTS[2:4]),
}


def ppo(name: str, **more: Any) -> dict[str, Any]:
    settings = LONG | PPO[name] | more
    model = family_model("mamba") if name == "one length at a time" else tiny_model(layers=3)
    prompts, left_out = LEFT_OUT.get(name, (None, []))
    trainer = PPOTrainer(tiny_config(**settings), partial(scored_without, left_out), model, tiny_tokenizer())
    trainer.generator.stop_ids = list(range(32))  # about every eighth token
    prompts = prompts or trainer.prompts_of_step(PROMPTS, 0)
    steps = [trainer.ppo_step(prompts) for _ in range(2)]
    held_out = evaluate(trainer, PROMPTS[3:])
    return {
        "texts": [step["generated_texts"] for step in steps],
        "finished": [step["sa_pairs"].finished.tolist() for step in steps],
        "metrics": [
            {k: v for k, v in step.items() if isinstance(v, int | float) and not k.startswith(("seconds", "buffer"))}
            for step in steps
        ],
        "advantages": [step["sa_pairs"]["advantage"].flatten().tolist() for step in steps],
        "parts": [step["reward_parts"] for step in steps],
        "weights": [float(p.detach().double().abs().sum()) for p in trainer.policy.parameters()],
        "held out": [held_out.texts, held_out.reward, held_out.kl, held_out.surprise],
        "answers": most_likely_answers(trainer, PROMPTS[:2], {"tuned": trainer.policy}),
        "draws": trainer.sampling_generator.get_state().sum().item(),
    }


def sft(**more: Any) -> dict[str, Any]:
    records = [Demonstration(p, f"{p[:5]} yes") for p in PROMPTS[:7]]
    settings = {"model_name": "tiny", "demonstrations": "-", "batch_size": 3, "epochs": 2, "learning_rate": 1e-2}
    config = SFTConfig(**settings, lora_r=4, lora_dropout=0.0, **more)
    trainer = SFTTrainer(config, tiny_model(), tiny_tokenizer())
    before = trainer.measure(records[:5])
    return {"before": before, "history": trainer.train(records), "after": trainer.measure(records[:2])}


def reward_model(**more: Any) -> dict[str, Any]:
    records = [Preference(p, f"{p[:5]} yes", f"no {p[1:3]}") for p in PROMPTS[:4]]
    records += [Scored(p, f"{p[-3:]} perhaps", float(n)) for n, p in enumerate(PROMPTS[4:7])]
    # At a higher rate Adam turns the rounding of gradients that are nearly 0 into losses that differ by more than 1e-6.
    settings = {"model_name": "tiny", "preferences": "-", "batch_size": 2, "epochs": 2, "learning_rate": 1e-3}
    config = RewardModelConfig(**settings, lora_r=4, lora_dropout=0.0, max_new_tokens=6, num_centring_prompts=5, **more)
    trainer = RewardTrainer(config, tiny_model(), tiny_tokenizer())
    history = trainer.train(records)
    return {"history": history, "scores": trainer.scores(PROMPTS[:5], ["yes", "no", "a", "b", "c"])}


def sharded() -> dict[str, Any]:
    """Bytes that this process holds of a base, whole and sharded, and what is saved of the adapter."""
    told = {}
    for name, shard in (("alone", False), ("sharded", True)):
        trainer = PPOTrainer(tiny_config(shard=shard), score, tiny_model(layers=3), tiny_tokenizer())
        base = trainer.base
        weights = dict(base_weights(base.model))
        of_layers = {n for n in weights if ".layers." in n}
        with tempfile.TemporaryDirectory() as folder:
            save_adapter(trainer.policy, Path(folder) / "policy")
            saved = load_file(Path(folder) / "policy" / "adapter_model.safetensors")
        told[name] = {
            "layers": sum(nbytes_here(weights[n]) for n in of_layers),
            "others": sum(nbytes_here(w) for n, w in weights.items() if n not in of_layers),
            "report": round(trainer.memory_report()[0][1] * 2**20),
            "identity": base.identity.parts,
            "whole at rest": sum(not is_sharded(weights[n]) for n in of_layers),
            "saved": {name: float(t.double().sum()) for name, t in saved.items()},
        }
    return told


def served(url: str) -> dict[str, Any]:
    """Responses from a server, of which the second step has one prompt: one of two processes asks for nothing."""
    rollout = {"engine": "vllm", "url": url, "model": MODEL}
    settings = {"adapter_scope": "sequence", "top_k": 0, "top_p": 1.0, "rollout": rollout, "mini_batch_size": 4}
    trainer = PPOTrainer(tiny_config(**settings), score, tiny_model(), tiny_tokenizer())
    steps = [trainer.ppo_step(prompts) for prompts in (PROMPTS, PROMPTS[:1], PROMPTS)]
    world.gather(None)  # all have asked before the first takes its adapter away
    return {
        "texts": [step["generated_texts"] for step in steps],
        "losses": [[step["policy_loss"], step["value_loss"], step["sampler_gap"]] for step in steps],
    }


def failing(where: str, **more: Any) -> dict[str, Any]:
    """The last process alone meets something that goes wrong: all end with the same sentence."""
    trainer = PPOTrainer(tiny_config(**more), score, tiny_model(), tiny_tokenizer())
    is_last = world.rank() == world.size() - 1
    if where == "decoding" and is_last:
        trainer.base.read_prompts = _broken  # type: ignore[method-assign]
    if where == "logits" and is_last:
        logits = trainer.base.decoder.logits
        trainer.base.decoder.logits = lambda state: logits(state) * float("nan")  # type: ignore[method-assign]
    if where == "training" and is_last:
        trainer.policy.logprobs = _broken  # type: ignore[method-assign]
    try:
        trainer.ppo_step(PROMPTS)
    except Exception as error:
        return {"everywhere": world.gather(f"{type(error).__name__}: {error}")}
    return {"everywhere": []}


def _broken(*_: Any, **__: Any) -> Any:
    raise MemoryError("allocate memory")


def warned() -> list[str]:
    """What a process has to say about its own work, the first one says."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with world.together():
            warnings.warn(f"said by {world.rank()} of {world.size()}", stacklevel=2)
    return [str(one.message) for one in told]


def cases(url: str) -> dict[str, Any]:
    work: dict[str, Callable[[], Any]] = {name: partial(ppo, name) for name in PPO}
    work |= {"sft": sft, "reward": reward_model, "warned": warned}
    work |= {f"failing {where}": partial(failing, where) for where in FAILURES}
    found = {}
    if world.size() == 2:
        work = {name: work[name] for name in FEW}  # what two do alike with whole and with sharded bases
        work |= {f"sharded {name}": partial(ppo, name, shard=True) for name in SHARDED}
        work |= {"sharded sft": partial(sft, shard=True), "sharded reward": partial(reward_model, shard=True)}
        work |= {"offloaded critic": partial(ppo, "critic", shard=True, shard_offload=True)}
        work |= {"a sharded base": sharded}
        work |= {f"failing {where}": partial(failing, where) for where in FAILURES}
        work |= {f"sharded failing {where}": partial(failing, where, shard=True) for where in FAILURES}
    if world.size() < 3:
        work["served"] = partial(served, url)
    for name in work:
        try:
            found[name] = work[name]()
        except BurnishError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def _process(rank: int, size: int, port: int, results: Path, url: str) -> None:
    code = 1
    try:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ["BURNISH_PATIENCE"] = "1"
        with world.joined():
            found = cases(url)
        if rank == 0:
            results.write_text(json.dumps(found))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main(folder: Path) -> None:
    for size in (1, 2, 3):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = StandInServer(tiny_model())
        children = []
        for rank in range(size):
            pid = os.fork()
            if pid == 0:
                _process(rank, size, port, folder / f"{size}.json", server.url)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        server.stop()
        asked = [[body["prompt"], body["seed"]] for body in server.asked if body["model"] != MODEL]
        told = {"asked": sorted(asked), "loaded": len(server.loaded)}
        (folder / f"server-{size}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
