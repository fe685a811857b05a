"""Emulate a rank on NCCL whose device hangs in collective 31, without a GPU and without torch.

The trace file has 31 all-reduces without completion. A thread serves dump requests on the pipe set
by torch's variables, as torch 2.13 does; in its dump 30 are completed. The main thread waits.
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
backend = PythonRecorder(recorder._trace, "/nowhere/torch")
recorder._trace.note_json(
    trace_file.TraceNote.MEMBERS,
    {"name": "0", "ranks": list(range(size)), "description": "default_pg"},
)
call = CallDetails(
    elements=8, dtype=trace_file.DTYPES.index("float32"), shape=(8,), tensors=1, reduction=0
)
for _ in range(COLLECTIVES):
    backend.mark_no_completion(backend.record("0", trace_file.OPERATIONS.index("all_reduce"), call))


def entry(number: int) -> dict[str, object]:
    completed = number < COLLECTIVES
    return {
        "record_id": number - 1,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": time.time_ns(),
        "state": "completed" if completed else "scheduled",
        "retired": completed,
        "is_p2p": False,
    }


def serve_dump_requests() -> None:
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


threading.Thread(target=serve_dump_requests, daemon=True).start()
time.sleep(600)
