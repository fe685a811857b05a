"""Record the output of ``make demo`` as a picture, docs/images/hang.svg.

``python docs/record_demo.py``, after a change of messages. Takes a minute on an idle machine.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
WIDTH = 100
_FONTS = re.compile(r"\s*@font-face \{.*?\}\n", re.DOTALL)


def run_demo() -> str:
    """Return the output of ``make demo`` on a terminal of 100 columns, with its escape codes."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, WIDTH, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(WIDTH)}
    process = subprocess.Popen(
        ["make", "--silent", "demo"], cwd=ROOT, env=environment, stdout=follower, stderr=follower
    )
    os.close(follower)
    blocks = []
    while block := _read(leader):
        blocks.append(block)
    os.close(leader)
    if status := process.wait():
        sys.exit(f"make demo failed with exit status {status}:\n{b''.join(blocks).decode()}")
    # Paths are relative to the checkout in the page.
    return b"".join(blocks).decode().replace("\r\n", "\n").replace(f"{ROOT}/", "")


def _read(leader: int) -> bytes:
    try:
        return os.read(leader, 65_536)
    except OSError:  # EIO: the demo has closed the terminal
        return b""


def write_picture(output: str, path: Path) -> None:
    """Write the output as SVG that loads nothing from other sites."""
    console = Console(record=True, width=WIDTH, file=StringIO())
    console.print(Text("make demo", style="bold"))
    console.print(Text.from_ansi(output.rstrip()))
    path.write_text(_FONTS.sub("\n", console.export_svg(title="", unique_id="demo")))


if __name__ == "__main__":
    write_picture(run_demo(), ROOT / "docs" / "images" / "hang.svg")
