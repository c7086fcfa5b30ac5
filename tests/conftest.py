import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test needs a network, and none may wait for one
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TQDM_DISABLE", "1")
# Some virtual machines announce AMX and end a process that uses it: torch would, for half precision.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX10_1_512")
os.environ["BURNISH_STATE"] = tempfile.mkdtemp(prefix="burnish-state-")  # the user's own key stays out of it
sys.path.insert(0, str(Path(__file__).parent))

# Before torch, which reads what it sets: threads that wait must not spin beside the other process's tests.
import burnish  # noqa: F401  # isort: skip

import pytest
import torch

atexit.register(shutil.rmtree, os.environ["BURNISH_STATE"], ignore_errors=True)


def pytest_collection_modifyitems(items):
    """Files that take minutes come first, so that in the end no process is left alone with one of them."""
    slow = {item.path for item in items if any(map(item.get_closest_marker, ("real_model", "long")))}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True)
def _threads(request):
    """A tiny model is faster on one thread; tests of the embedded model take what the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if request.node.get_closest_marker("real_model") else 1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def fork_server(tmp_path_factory):
    """Runs burnish commands in forks of one prepared process, for the tests of one file."""
    from failures import ForkServer

    started = ForkServer(tmp_path_factory.mktemp("outputs"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium, for the tests of one file; skipped where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield started
    started.quit()
