"""The same training in one, two and three processes. A script: it prints, as JSON, what each world has found.

Everything is imported once; the processes of each world are forks.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

torch.set_num_threads(1)  # a fork must not inherit a thread pool
sys.path.insert(0, str(Path(__file__).parents[1]))

from burnish import PPOTrainer  # noqa: E402
from burnish.config import RewardModelConfig, SFTConfig  # noqa: E402
from burnish.data import Demonstration, Preference, Scored  # noqa: E402
from burnish.errors import BurnishError  # noqa: E402
from burnish.evaluation.measure import evaluate, most_likely_answers  # noqa: E402
from burnish.processes import world  # noqa: E402
from burnish.supervised.reward_trainer import RewardTrainer  # noqa: E402
from burnish.supervised.sft_trainer import SFTTrainer  # noqa: E402
from families import family_model  # noqa: E402
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


def ppo(name: str) -> dict[str, Any]:
    settings = LONG | PPO[name]
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


def sft() -> dict[str, Any]:
    records = [Demonstration(p, f"{p[:5]} yes") for p in PROMPTS[:7]]
    settings = {"model_name": "tiny", "demonstrations": "-", "batch_size": 3, "epochs": 2, "learning_rate": 1e-2}
    trainer = SFTTrainer(SFTConfig(**settings, lora_r=4, lora_dropout=0.0), tiny_model(), tiny_tokenizer())
    before = trainer.measure(records[:5])
    return {"before": before, "history": trainer.train(records), "after": trainer.measure(records[:2])}


def reward_model() -> dict[str, Any]:
    records = [Preference(p, f"{p[:5]} yes", f"no {p[1:3]}") for p in PROMPTS[:4]]
    records += [Scored(p, f"{p[-3:]} perhaps", float(n)) for n, p in enumerate(PROMPTS[4:7])]
    settings = {"model_name": "tiny", "preferences": "-", "batch_size": 2, "epochs": 2, "learning_rate": 1e-2}
    config = RewardModelConfig(**settings, lora_r=4, lora_dropout=0.0, max_new_tokens=6, num_centring_prompts=5)
    trainer = RewardTrainer(config, tiny_model(), tiny_tokenizer())
    history = trainer.train(records)
    return {"history": history, "scores": trainer.scores(PROMPTS[:5], ["yes", "no", "a", "b", "c"])}


def failing(where: str) -> dict[str, Any]:
    """The last process alone meets something that goes wrong: all end with the same sentence."""
    trainer = PPOTrainer(tiny_config(), score, tiny_model(), tiny_tokenizer())
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


def cases() -> dict[str, Any]:
    work: dict[str, Callable[[], Any]] = {name: partial(ppo, name) for name in PPO}
    work |= {"sft": sft, "reward": reward_model, "warned": warned}
    work |= {f"failing {where}": partial(failing, where) for where in FAILURES}
    found = {}
    for name in FEW if world.size() == 2 else work:
        try:
            found[name] = work[name]()
        except BurnishError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def _process(rank: int, size: int, port: int, results: Path) -> None:
    code = 1
    try:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ["BURNISH_PATIENCE"] = "1"
        with world.joined():
            found = cases()
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
        children = []
        for rank in range(size):
            pid = os.fork()
            if pid == 0:
                _process(rank, size, port, folder / f"{size}.json")
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
