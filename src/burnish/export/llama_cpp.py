"""llama.cpp as a process: a GGUF model and perhaps an adapter in, the most likely tokens out.

Run with `python -m burnish.export.llama_cpp`; it reads one JSON object and prints one line. It is a process of its own
because llama.cpp ends the one that it runs in when a file is not what it expects.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from typing import Any

ANSWERS = "answers of llama.cpp: "  # before the line that counts: llama.cpp prints others
DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy does not know this machine's ports


def main() -> None:
    import xllamacpp

    asked = json.loads(sys.stdin.read())
    params = xllamacpp.CommonParams()
    params.model.path, params.port, params.warmup = asked["model"], 0, False
    longest = max(map(len, asked["prompts"])) + asked["max_new_tokens"]
    params.n_ctx, params.n_parallel = longest + 8, 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32  # burnish's are float32 too
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED  # it rounds more
    if asked["adapter"] is not None:
        adapter = xllamacpp.CommonAdapterLoraInfo()
        adapter.path, adapter.scale = asked["adapter"], 1.0
        params.lora_adapters = [adapter]
    server = xllamacpp.Server(params)
    address = server.listening_address
    answers = [_answer(address, ids, asked["stop_ids"], asked["max_new_tokens"]) for ids in asked["prompts"]]
    print(f"\n{ANSWERS}{json.dumps(answers)}", flush=True)


def _answer(address: str, ids: list[int], stop_ids: list[int], max_new_tokens: int) -> dict[str, list[Any]]:
    """One token at a time: of several, llama.cpp tells log-probabilities only where letters are complete."""
    tokens: list[int] = []
    logprobs: list[float | None] = []
    while len(tokens) < max_new_tokens and not (tokens and tokens[-1] in stop_ids):
        said = _next(address, [*ids, *tokens])
        found = said.get("completion_probabilities") or []  # none of half a letter
        tokens.append(said["tokens"][0] if said["tokens"] else found[0]["id"])
        logprobs.append(found[0]["logprob"] if found else None)
    return {"tokens": tokens, "logprobs": logprobs}


def _next(address: str, ids: list[int]) -> Any:
    """The most likely next token; `n_probs` is needed for its log-probability, which is that before any sampling."""
    asked = {"prompt": ids, "n_predict": 1, "temperature": 0.0, "n_probs": 1, "return_tokens": True}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/completion", json.dumps(asked).encode(), headers)
    try:
        with DIRECTLY.open(request, timeout=600) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        raise SystemExit(error.read().decode(errors="replace")) from None


if __name__ == "__main__":
    main()
