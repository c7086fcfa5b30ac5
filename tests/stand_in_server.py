"""A stand-in for a vLLM server: it speaks the protocol, computes with a tiny model, and can be made to fail.

It knows nothing of burnish: transformers reads the base, and adapters are added to its weights from peft's files.
"""

from __future__ import annotations

import copy
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

MODEL = "tiny"


class StandInServer(ThreadingHTTPServer):
    """`failures` are what happens to the next requests for a response, in turn; None: nothing. What was asked, loaded
    and unloaded is remembered.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, model: Any, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.base = model
        self.adapters: dict[str, Any] = {}
        self.lock = threading.Lock()
        self.reset()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def reset(self) -> None:
        self.adapters.clear()
        self.failures: list[str | None] = []
        self.is_stale = False  # adapters are loaded, and not used
        self.is_raw = False  # log-probabilities are those from before the temperature
        self.asked: list[dict[str, Any]] = []
        self.loaded: list[dict[str, str]] = []
        self.unloaded: list[str] = []
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def stop(self) -> None:
        self.shutdown()
        self.server_close()

    def load(self, name: str, folder: Path) -> None:
        """Adds B A alpha / r to the weights of a copy of the base."""
        settings = json.loads((folder / "adapter_config.json").read_text())
        tensors = load_file(folder / "adapter_model.safetensors")
        model = copy.deepcopy(self.base)
        for key, a in tensors.items():
            if key.endswith("lora_A.weight"):
                module = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                b = tensors[key.replace("lora_A", "lora_B")]
                model.get_submodule(module).weight.data += settings["lora_alpha"] / settings["r"] * b @ a
        self.adapters[name] = self.base if self.is_stale else model

    @torch.no_grad()
    def respond(self, body: dict[str, Any]) -> dict[str, Any]:
        model = self.base if body["model"] == MODEL else self.adapters[body["model"]]
        generator = torch.Generator().manual_seed(body["seed"])
        tokens, logprobs = list(body["prompt"]), []
        while len(logprobs) < body["max_tokens"]:
            logits = model(torch.tensor([tokens])).logits[0, -1]
            drawn_from = (logits / body["temperature"]).log_softmax(-1)
            tokens.append(int(torch.multinomial(drawn_from.exp(), 1, generator=generator)))
            shown = logits.log_softmax(-1) if self.is_raw else drawn_from
            logprobs.append(float(shown[tokens[-1]]))
            if tokens[-1] in body["stop_token_ids"]:
                break
        new = tokens[len(body["prompt"]) :]
        return {"token_ids": new, "logprobs": {"token_logprobs": logprobs}, "finish_reason": "stop"}


class _Handler(BaseHTTPRequestHandler):
    server: StandInServer
    delay = 0.0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.keys.append(self.headers["Authorization"])
        try:
            with self.server.lock:
                answer = {
                    "/v1/completions": self._completions,
                    "/v1/load_lora_adapter": self._load,
                    "/v1/unload_lora_adapter": self._unload,
                }[self.path](body)
            time.sleep(self.delay)
            if answer is not None:
                self._send(*answer)
        except OSError:
            pass  # it did not wait

    def _completions(self, body: dict[str, Any]) -> tuple[int, bytes] | None:
        server = self.server
        server.asked.append(body)
        failure = server.failures.pop(0) if server.failures else None
        if failure == "hang up":
            self.close_connection = True
            return None
        if failure == "lose the adapters":
            server.adapters.clear()
        self.delay = 1.2 if failure == "take too long" else 0.0
        if failure and failure.isdigit():
            return int(failure), b"not today"
        if body["model"] != MODEL and body["model"] not in server.adapters:
            return 404, b'{"error": {"message": "The model does not exist."}}'
        choice = server.respond(body)
        if failure == "fewer tokens":
            choice = {"token_ids": choice["token_ids"][:1], "finish_reason": "abort"} | {
                "logprobs": {"token_logprobs": choice["logprobs"]["token_logprobs"][:1]}
            }
        if failure == "no log-probabilities":
            choice["logprobs"] = None
        return 200, b"oops" if failure == "no JSON" else json.dumps({"choices": [choice]}).encode()

    def _load(self, body: dict[str, Any]) -> tuple[int, bytes]:
        if body["lora_name"] in self.server.adapters:
            return 400, b"The lora adapter has already been loaded."
        self.server.loaded.append(body)
        self.server.load(body["lora_name"], Path(body["lora_path"]))
        return 200, b"Success: LoRA adapter added successfully."

    def _unload(self, body: dict[str, Any]) -> tuple[int, bytes]:
        self.server.unloaded.append(body["lora_name"])
        if self.server.adapters.pop(body["lora_name"], None) is None:
            return 404, b"The lora adapter cannot be found."
        return 200, b"Success: LoRA adapter removed successfully."

    def _send(self, status: int, answer: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass
