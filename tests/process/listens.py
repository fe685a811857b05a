"""Emulate a rank on NCCL without holdfast, a GPU or torch; rank 1 has not entered collective 31.

A thread serves dump requests on the pipe set by torch's variables, as torch 2.13 does.
"""

import os
import pickle
import threading
import time
from pathlib import Path

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ENTERED, COMPLETED = (30, 30) if rank == 1 else (31, 30)


def entry(number: int) -> dict[str, object]:
    completed = number <= COMPLETED
    return {
        "record_id": number - 1,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": time.time_ns(),
        "input_sizes": [[8]],
        "output_sizes": [[8]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "state": "completed" if completed else "scheduled",
        "retired": completed,
        "is_p2p": False,
        "frames": [],
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": time.time_ns() if completed else None,
    }


def serve_dump_requests() -> None:
    pipe = f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{rank}.pipe"
    os.mkfifo(pipe)
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.write(1, b"listens\n")
    dump = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(size)))}},
        "pg_status": {
            "0": {
                "last_enqueued_collective": ENTERED,
                "last_started_collective": -1,
                "last_completed_collective": COMPLETED,
            }
        },
        "entries": [entry(number) for number in range(1, ENTERED + 1)],
    }
    while True:
        time.sleep(0.2)
        if os.read(descriptor, 128):
            Path(f"{os.environ['TORCH_NCCL_DEBUG_INFO_TEMP_FILE']}{rank}").write_bytes(
                pickle.dumps(dump, protocol=2)
            )


def wait_for_the_device() -> None:
    time.sleep(600)


def read_a_batch() -> None:
    time.sleep(600)  # GUILTY


threading.Thread(target=serve_dump_requests, daemon=True).start()
if rank == 1:
    read_a_batch()
wait_for_the_device()
