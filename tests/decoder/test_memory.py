"""Memory of this process, and of nobody else."""

import subprocess
import sys

from burnish.decoder.memory import held_bytes, peak_bytes

CHILD = "from burnish.decoder.memory import held_bytes, peak_bytes; print(held_bytes(), peak_bytes())"


def test_the_peak_is_at_least_what_is_held_and_grows_with_it():
    before = peak_bytes()
    block = bytearray(b"x") * (before + 2**26)  # more than was ever held
    assert peak_bytes() >= before + 2**26
    assert peak_bytes() >= held_bytes() - 2**20
    # and a process that a large one starts begins with a peak of its own
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    held, peak = map(int, done.stdout.split())
    assert peak < 2 * held < len(block)
