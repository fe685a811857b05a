"""Generate flight-recorder dumps in the format of torch's NCCL groups."""

from __future__ import annotations

import pickle
from typing import Any

#: Time of the first call in Unix nanoseconds.
BEGAN_NS = 1_795_000_000_000_000_000
FRAMES = [
    {
        "name": "all_reduce",
        "filename": "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py",
        "line": 3245,
    },
    {"name": "train_step", "filename": "/job/train.py", "line": 41},
    {"name": "<module>", "filename": "/job/train.py", "line": 90},
]


def entry(number: int, state: str = "completed", **more: Any) -> dict[str, Any]:
    """Return the entry of collective ``number`` of group ``0`` (version 2.10), one per second."""
    created_ns = BEGAN_NS + number * 1_000_000_000
    over = state == "completed"
    return {
        "frames": FRAMES,
        "record_id": number - 1,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "pt_main_thread",
        "thread_id": "140393171504000",
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": created_ns,
        "input_sizes": [[4096, 8]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[4096, 8]],
        "output_dtypes": ["BFloat16"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": created_ns + 500_000_000 if over else None,
        "retired": over,
        "timeout_ms": 600000,
        "is_p2p": False,
    } | more


def content(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the content of a dump with these entries."""
    numbers = [each["collective_seq_id"] for each in entries] or [-1]
    done = [each["collective_seq_id"] for each in entries if each["state"] == "completed"] or [-1]
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "comm_lib_version": "2.27.5",
        "pg_status": {
            "0": {
                "last_enqueued_collective": max(numbers),
                "last_started_collective": -1,
                "last_completed_collective": max(done),
            }
        },
        "entries": list(entries),
    } | more


def until(enqueued: int, completed: int) -> dict[str, Any]:
    """Return a dump with this many enqueued and completed collectives."""
    return content(
        *(entry(n, "completed" if n <= completed else "scheduled") for n in range(1, enqueued + 1))
    )


def written(dump: dict[str, Any]) -> bytes:
    """Return the dump as a pickle of protocol 2, as torch writes it."""
    return pickle.dumps(dump, protocol=2)
