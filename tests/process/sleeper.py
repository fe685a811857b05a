"""Start a data loader, a child process and a child in another session on each rank, then sleep.

``--stubborn``: ignore SIGTERM and SIGINT. ``--frozen``: rank 1 sends itself SIGSTOP. ``--dies``:
rank 0 exits with status 3. The last two apply to generation 0 only; the next one succeeds.
"""

import os
import signal
import subprocess
import sys
import time

import torch.distributed as dist
from torch.utils.data import DataLoader

FIRST = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

dist.init_process_group("gloo")
if "--stubborn" in sys.argv:
    for word in (signal.SIGTERM, signal.SIGINT):
        signal.signal(word, lambda *_: print("no", flush=True))  # noqa: T201
children = [
    subprocess.Popen(["sleep", "1000"], start_new_session=escapes) for escapes in (False, True)
]
loader = iter(DataLoader(list(range(1000)), num_workers=1))
next(loader)
dist.barrier()
print("ready", flush=True)  # noqa: T201
if not FIRST:
    for child in children:
        child.kill()
    sys.exit(0)
if "--frozen" in sys.argv and dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
if "--dies" in sys.argv and dist.get_rank() == 0:
    time.sleep(1)
    os._exit(3)
time.sleep(1000)
