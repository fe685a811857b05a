"""Write the state of a worker process to FOLDER at its start, then train.

Rank 1 is killed once FOLDER/go exists. A standby worker must be in the same state as a new process.
"""

import gc
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

FOLDER, GENERATION, RANK = (
    Path(sys.argv[1]),
    os.environ["TORCHELASTIC_RESTART_COUNT"],
    os.environ["RANK"],
)
#: Different at every start; torch sets the last one when parts of it are imported.
PER_START = (
    "TORCHELASTIC_",
    "MASTER_PORT",
    "HOLDFAST_",
    "TORCH_NCCL_DEBUG_INFO_",
    "TORCHINDUCTOR_CACHE_DIR",
)


def status(*names):
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: lines[name].strip() for name in names}


def environment(pairs):
    return {name: text for name, text in sorted(pairs) if not name.startswith(PER_START)}


def environment_in_proc():
    pairs = Path("/proc/self/environ").read_bytes().rstrip(b"\0").decode().split("\0")
    return environment(pair.split("=", 1) for pair in pairs if "=" in pair)


mask = os.umask(0o022)
os.umask(mask)
state = {
    "name": __name__,
    "file": __file__,
    "arguments": sys.argv,
    "original": sys.orig_argv,
    "path": sys.path,
    "folder": os.getcwd(),  # noqa: PTH109
    "mask": mask,
    "environment": environment(os.environ.items()),
    "environment from outside the job": environment_in_proc(),
    "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"]) >= 0,
    "command line": Path("/proc/self/cmdline").read_bytes().decode().split("\0"),
    "signals": [str(signal.getsignal(each)) for each in sorted(signal.valid_signals() - {32, 33})],
    **status("SigIgn", "SigBlk", "CapEff", "NoNewPrivs", "Cpus_allowed_list"),
    "nice": os.getpriority(os.PRIO_PROCESS, 0),
    "scheduler": os.sched_getscheduler(0),
    "memory killer": Path("/proc/self/oom_score_adj").read_text().strip(),
    "leads its session": os.getsid(0) == os.getpid() == os.getpgid(0),
    "open files": sorted(
        os.readlink(link)  # noqa: PTH115
        for link in Path("/proc/self/fd").iterdir()
        if link.exists() and "/rank" not in os.readlink(link)  # noqa: PTH115
    ),
    "terminal": [stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)],
    "encoding": [sys.stdout.encoding, sys.stdout.line_buffering, sys.stdout.write_through],
    "threads": [each.name for each in threading.enumerate()],
    "collector": [gc.isenabled(), gc.get_freeze_count()],
}

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

state["torch"] = [
    torch.get_num_threads(),
    torch.cuda.is_initialized(),
    torch.get_default_dtype().itemsize,
]
(FOLDER / f"generation{GENERATION}-rank{RANK}.json").write_text(json.dumps(state))
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    if GENERATION == "1":
        break
    if RANK == "1" and (FOLDER / "go").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
print("stepped", "as", os.getpid(), flush=True)  # noqa: T201
print("complained", file=sys.stderr, flush=True)  # noqa: T201
del model  # before its group (PROC013)
dist.destroy_process_group()
