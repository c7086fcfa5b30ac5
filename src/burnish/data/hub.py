"""The hub that models and datasets come from, asked once and briefly whether it is there."""

from __future__ import annotations

import os
import socket
from functools import cache
from urllib.parse import urlsplit


@cache
def hub_answers() -> bool:
    """Whether the hub can be reached: its own client would retry for half a minute."""
    if os.environ.get("HF_HUB_OFFLINE", "") in ("1", "true", "True"):
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True  # behind a proxy only the client itself can tell
    import huggingface_hub.constants  # slow to import, and only needed where something is named that is not on disk

    address = urlsplit(huggingface_hub.constants.ENDPOINT)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        with socket.create_connection((address.hostname or "", port), timeout=5):
            return True
    except OSError:
        return False


def ask_no_hub() -> None:
    """From now on its client looks at what it has kept, and at nothing else."""
    import huggingface_hub.constants

    huggingface_hub.constants.HF_HUB_OFFLINE = True
