"""llama.cpp as a process: a GGUF model and perhaps an adapter in, the most likely tokens out.

Run with `python -m burnish.export.llama_cpp`; it reads one JSON object and prints one line. It is a process of its own
because llama.cpp ends the one that it runs in when a file is not what it expects.
"""

from __future__ import annotations

import json
import sys
from typing import Any

ANSWERS = "answers of llama.cpp: "  # before the line that counts: llama.cpp prints others


def main() -> None:
    import xllamacpp

    asked = json.loads(sys.stdin.read())
    params = xllamacpp.CommonParams()
    params.model.path, params.port, params.warmup = asked["model"], 0, False
    longest = max(map(len, asked["prompts"])) + asked["max_new_tokens"]
    params.n_ctx, params.n_parallel = longest + 8, 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32  # burnish's are float32 too
    if asked["adapter"] is not None:
        adapter = xllamacpp.CommonAdapterLoraInfo()
        adapter.path, adapter.scale = asked["adapter"], 1.0
        params.lora_adapters = [adapter]
    server = xllamacpp.Server(params)
    answers = [_answer(server, ids, asked["max_new_tokens"]) for ids in asked["prompts"]]
    print(f"\n{ANSWERS}{json.dumps(answers)}", flush=True)


def _answer(server: Any, ids: list[int], max_new_tokens: int) -> dict[str, list[Any]]:
    """`n_probs` is needed for log-probabilities to be told; they are those before any sampling."""
    said = server.handle_completions(
        {
            "prompt": ids,
            "n_predict": max_new_tokens,
            "temperature": 0.0,
            "top_k": 1,
            "n_probs": 1,
            "return_tokens": True,
            "ignore_eos": False,
            "cache_prompt": False,
        }
    )
    if "error" in said:
        raise SystemExit(str(said["error"]))
    rows = said["completion_probabilities"]
    return {"tokens": [row["id"] for row in rows], "logprobs": [row["logprob"] for row in rows]}


if __name__ == "__main__":
    main()
