"""Generate GPU memory snapshots in the format of torch/csrc/cuda/memory_snapshot.cpp.

They were written without a GPU; whether real snapshots differ is untested.
"""

from __future__ import annotations

import pickle
from typing import Any

MIB, GIB = 1 << 20, 1 << 30
TORCH = "/env/lib/python3.11/site-packages/torch"


def frame(file: str, line: int, name: str) -> dict[str, Any]:
    """Return one frame of a stack."""
    return {"filename": file, "line": line, "name": name}


TRAIN = frame("/home/me/train.py", 41, "main")
CALL = frame(f"{TORCH}/nn/modules/module.py", 1775, "_call_impl")
FORWARD = [frame("/home/me/model.py", 88, "forward"), CALL, TRAIN]
LINEAR = [frame(f"{TORCH}/nn/modules/linear.py", 134, "forward"), CALL, *FORWARD]
LOSS = [
    frame(f"{TORCH}/nn/functional.py", 3494, "cross_entropy"),
    frame("/home/me/train.py", 44, "main"),
]
STEP = [
    frame(f"{TORCH}/optim/adam.py", 172, "_init_group"),
    frame(f"{TORCH}/optim/adam.py", 226, "step"),
    frame("/home/me/train.py", 48, "main"),
]
MOVED = [
    frame(f"{TORCH}/nn/modules/module.py", 1355, "convert"),
    frame(f"{TORCH}/nn/modules/module.py", 942, "_apply"),
    frame("/home/me/train.py", 20, "main"),
]
ENGINE = [
    frame(
        "??",
        0,
        "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)",
    )
]
GATHER = [
    frame(
        f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_collectives.py",
        270,
        "all_gather_copy_in_cuda",
    ),
    *FORWARD,
]


def segment(
    *blocks: tuple[int, list[dict[str, Any]] | None], address: int = 1 << 44, device: int = 0
) -> dict[str, Any]:
    """Return a segment of blocks (bytes, frames); a block without frames (None) is idle."""
    block_entries, at = [], address
    for size, frames in blocks:
        state = "inactive" if frames is None else "active_allocated"
        block_entries.append(
            {
                "address": at,
                "size": size,
                "requested_size": size if frames is not None else 0,
                "state": state,
                "frames": frames or [],
            }
        )
        at += size
    held = sum(size for size, frames in blocks if frames is not None)
    return {
        "device": device,
        "address": address,
        "total_size": at - address,
        "allocated_size": held,
        "active_size": held,
        "requested_size": held,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": block_entries,
    }


def out_of_memory(size: int, free: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the event of a failed request."""
    return {
        "action": "oom",
        "device_free": free,
        "size": size,
        "stream": 0,
        "time_us": 1,
        "frames": frames,
    }


def allocated(address: int, size: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the event of an allocation."""
    return {
        "action": "alloc",
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": 1,
        "frames": frames,
    }


def snapshot(*segments: dict[str, Any], trace: tuple[dict[str, Any], ...] = ()) -> bytes:
    """Return the file content."""
    return pickle.dumps(
        {"segments": list(segments), "device_traces": [list(trace)], "allocator_settings": {}}
    )


def full(*events: dict[str, Any]) -> bytes:
    """Return an 80 GiB GPU full of activations: 70 of 79 GiB in use."""
    layers = [segment((7 * GIB, LINEAR), address=(1 << 44) + at * (7 * GIB)) for at in range(10)]
    trace = events or (out_of_memory(4 * GIB, 300 * MIB, LINEAR),)
    return snapshot(
        *layers,
        segment((3 * GIB, MOVED), address=1 << 45),
        segment((6 * GIB, STEP), address=1 << 46),
        trace=trace,
    )


def fragmented() -> bytes:
    """Return 60 GiB of which 24 are idle in blocks of 1 GiB; the request is 2 GiB."""
    pieces = [
        (1 * GIB if idle else int(1.5 * GIB), None if idle else LINEAR)
        for _ in range(24)
        for idle in (0, 1)
    ]
    return snapshot(segment(*pieces), trace=(out_of_memory(2 * GIB, 500 * MIB, LINEAR),))


def handled() -> bytes:
    """Return a snapshot written in an exception handler: forward's 6 GiB are free again."""
    allocations = tuple(allocated((1 << 44) + at * GIB, GIB, LINEAR) for at in range(6))
    freed = tuple({**event, "action": "free_requested", "frames": []} for event in allocations)
    blocks: list[tuple[int, list[dict[str, Any]] | None]] = [(GIB, None)] * 6
    failed = out_of_memory(2 * GIB, 500 * MIB, LINEAR)
    return snapshot(
        segment(*blocks),
        segment((GIB, MOVED), address=1 << 45),
        trace=(*allocations, failed, *freed),
    )


def growing(steps: int = 8) -> bytes:
    """Return memory of which each step retains 1 GiB of its forward."""
    trace, blocks = [], []
    for step in range(steps):
        address = (1 << 44) + step * GIB
        trace += [allocated(address, GIB, FORWARD), allocated(1 << 46, GIB, STEP)]
        blocks.append((GIB, FORWARD))
    held = segment(*blocks)
    return snapshot(
        held,
        segment((GIB, STEP), address=1 << 46),
        trace=(*trace, out_of_memory(2 * GIB, MIB, FORWARD)),
    )
