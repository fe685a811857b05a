"""Simulate the thread of an NCCL group that handles dump requests, as in torch 2.13.

``DumpPipe``: remove a file of that name, create the pipe, open it without blocking, read at most 128 bytes
periodically. ``DebugInfoWriter``: open the dump for writing, which truncates it, and write. Arguments: stem of the
pipe, stem of the dump, rank, and files that are written in turn, one per request; the last one is repeated. After
``slowly`` the next one is written in two halves, the second after a line on stdin; ``mute`` writes nothing.
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
