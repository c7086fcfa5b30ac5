"""Runs the demo: PPO on a real language model, on this machine, in minutes. (`burnish demo` does the same.)"""

import sys

from burnish.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["demo"]
    main()
