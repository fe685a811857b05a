"""Record the time of every optimizer step of a script: ``step_clock.py FOLDER SCRIPT …``.

Rank 0 appends the monotonic time of each step, in seconds, to ``FOLDER/steps``: little-endian
doubles of 8 bytes.
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
    """Register the hook, then run the script as ``__main__``."""
    _, folder, *sys.argv = sys.argv
    if os.environ["RANK"] == "0":
        # Open until the process exits.
        clock = Path(folder, "steps").open("ab", buffering=0)  # noqa: SIM115
        register_optimizer_step_post_hook(
            lambda *_: clock.write(struct.pack("<d", time.monotonic()))
        )
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
