"""One response of a short run, every number of every token: what docs/token_by_token.md computes again by hand.

python benchmarks/token_by_token.py      # a minute or two on two cores
"""

from __future__ import annotations

from typing import Any

from burnish import EMBEDDED_NAME, PPOConfig, PPOTrainer
from workload import write_results

QUESTIONS = [
    "What colour is the sky?",
    "What do bees make?",
    "Where do fish live?",
    "What is the capital of France?",
    "What falls from clouds?",
    "Which animal barks?",
    "What do you read?",
    "What is made from milk?",
]
STEPS = 4
COLUMNS = ("logprob_policy", "logprob_ref", "kl", "reward", "value", "td_error", "advantage", "return")


def brief(prompts: list[str], responses: list[str]) -> list[float]:
    """1 for a whole sentence of at most six words; a tenth less for every word more, and half for no full stop."""
    return [
        1.0 - 0.1 * max(len(response.split()) - 6, 0) - 0.5 * (not response.rstrip().endswith("."))
        for response in responses
    ]


def main() -> None:
    config = PPOConfig(
        model_name=EMBEDDED_NAME,
        chat_template=True,
        system_prompt="Answer in one very short sentence.",
        lora_layers=10,
        max_new_tokens=16,
        batch_size=len(QUESTIONS),
        steps=STEPS,
        epochs=2,
        learning_rate=1e-3,
        value_learning_rate=1e-3,
        whiten_advantages=True,
    )
    trainer = PPOTrainer(config, reward=brief)
    for _ in range(STEPS):
        results = trainer.ppo_step(QUESTIONS)
    pairs = results["sa_pairs"]
    chosen = [n for n in range(len(QUESTIONS)) if pairs.rows_of(n)[-1]["finished"] and 5 <= len(pairs.rows_of(n)) <= 9]
    number = chosen[0]
    rows: list[dict[str, Any]] = []
    for pair in pairs.rows_of(number):
        token = trainer.base.tokenizer.decode([pair["action"]])
        rows.append({"token": token, **{key: round(float(pair[key]), 6) for key in COLUMNS}})
    found = {
        "step": STEPS,
        "prompt": QUESTIONS[number],
        "response": results["generated_texts"][number],
        "score": results["rewards"][number],
        "kl_coef": config.kl_coef,
        "gamma": config.gamma,
        "lam": config.lam,
        "rows": rows,
    }
    write_results("token_by_token", found)


if __name__ == "__main__":
    main()
