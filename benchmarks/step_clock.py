"""Runs a script with a clock at every optimizer step: ``step_clock.py FOLDER SCRIPT ARGUMENTS…``.

Rank 0 appends the monotonic time (s, 8 bytes, little-endian double) of each step to ``FOLDER/steps``.
"""

from __future__ import annotations

import os
import runpy
import struct
import sys
import time
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook


def main() -> None:
    """Start the clock, then the script as ``__main__``."""
    _, folder, *sys.argv = sys.argv
    if os.environ["RANK"] == "0":
        clock = Path(folder, "steps").open("ab", buffering=0)  # noqa: SIM115 - open as long as the process lives
        register_optimizer_step_post_hook(lambda *_: clock.write(struct.pack("<d", time.monotonic())))
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
