"""Behaves as a rank on NCCL whose device hangs in collective 31: without a GPU, and without torch.

Its box has 31 all-reduces of which nothing more is known; a thread takes requests for dumps at the place that torch's
variables name, as an NCCL group of torch 2.13 does, and says that 30 are over. The main thread waits for the device.
"""

import os
import pickle
import threading
import time
from pathlib import Path

from holdfast import recorder
from holdfast.core import trace_file
from holdfast.recorder.backends import CallDetails, PythonRecorder

COLLECTIVES = 31
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
pen = PythonRecorder(recorder._trace, "/nowhere/torch")
recorder._trace.note_json(
    trace_file.TraceNote.MEMBERS,
    {"name": "0", "ranks": list(range(size)), "description": "default_pg"},
)
call = CallDetails(
    elements=8, dtype=trace_file.DTYPES.index("float32"), shape=(8,), tensors=1, reduction=0
)
for _ in range(COLLECTIVES):
    pen.mark_no_completion(pen.record("0", trace_file.OPERATIONS.index("all_reduce"), call))


def entry(number: int) -> dict[str, object]:
    over = number < COLLECTIVES
    return {
        "record_id": number - 1,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": time.time_ns(),
        "state": "completed" if over else "scheduled",
        "retired": over,
        "is_p2p": False,
    }


def answer() -> None:
    pipe = f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{rank}.pipe"
    os.mkfifo(pipe)
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    dump = {"version": "2.10", "entries": [entry(number) for number in range(1, COLLECTIVES + 1)]}
    while True:
        time.sleep(0.2)
        if os.read(descriptor, 128):
            Path(f"{os.environ['TORCH_NCCL_DEBUG_INFO_TEMP_FILE']}{rank}").write_bytes(
                pickle.dumps(dump, protocol=2)
            )


threading.Thread(target=answer, daemon=True).start()
time.sleep(600)
