"""Stands for the thread of an NCCL group that takes requests for dumps, step by step as torch 2.13's.

``DumpPipe``: remove what lies at the name, make the pipe, open it for reading without waiting, read at most 128 bytes
now and then. ``DebugInfoWriter``: open the dump for writing, which empties it, and write. Arguments: beginning of the
pipe's name, beginning of the dump's, rank, and files that are written in turn, one a request, the last again and again;
after ``slowly`` the next one is written in two halves, the second after a line on stdin; ``mute`` answers nothing.
"""

import os
import sys
import time
from pathlib import Path

pipe, dump, rank, *answers = sys.argv[1:]
name = f"{pipe}{rank}.pipe"
if os.path.lexists(name):
    Path(name).unlink()
os.mkfifo(name, 0o666)
descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
sys.stdout.write("ready\n")
sys.stdout.flush()
while True:
    time.sleep(0.02)
    if not os.read(descriptor, 128):
        continue
    slowly = answers[0] == "slowly"
    if slowly:
        del answers[0]
    if answers[0] == "mute":
        continue
    data = Path(answers.pop(0) if len(answers) > 1 else answers[0]).read_bytes()
    with Path(f"{dump}{rank}").open("wb") as file:
        file.write(data[: len(data) // 2])
        if slowly:
            file.flush()
            sys.stdout.write("half\n")
            sys.stdout.flush()
            sys.stdin.readline()
        file.write(data[len(data) // 2 :])
    sys.stdout.write("dumped\n")
    sys.stdout.flush()
