"""PROC013 python-lock-held."""

from __future__ import annotations

from holdfast.causes.remedies import RESTART, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

PYTHON_LOCK_HELD = Cause(
    code="PROC013",
    name="python-lock-held",
    summary="A rank sleeps in native code while it holds Python's lock (GIL), which another "
    "thread may need.",
    what_happens="A thread that waits in C or C++ must release the interpreter's lock (GIL) "
    "first. If it does not, and what it waits for needs the lock, both wait forever (a deadlock), "
    "and no other thread of the process runs. torch up to 2.13 does so: if "
    "DistributedDataParallel's reducer has the last reference to its gloo process group, because "
    "destroy_process_group was called first, freeing the model joins the group's thread with the "
    "lock held, and that thread needs it to free the tensors of its last collective. `holdfast "
    "run` prevents this case: before a group is destroyed, it lets the process's other threads "
    "become idle (usually a few milliseconds). Measured without this: 7 of 43 runs "
    "of a short training whose main() destroys the group and then frees the model hung at their "
    "end.",
    shows_before="destroy_process_group() in a function that still has the DDP model, or before "
    "`del model`.",
    shows_during="The rank uses no CPU, at a line that waits for nothing: the end of a function, "
    "a `del`, an assignment. py-spy prints `idle` for a thread that owns the GIL.",
    shows_after="The others time out in their next collective; at the end of the script only the "
    "launcher waits.",
    known_misses="faulthandler, which is used where tracing is denied, does not show the owner of "
    "the lock. A slow read or a lock in a custom extension looks the same while it lasts.",
    evidence_sources=(EvidenceSource.TRACE,),
    may_recover=True,
    remedies=(
        by_hand(
            "Find what it waits for in C++: std::thread::join under ~ProcessGroupGloo is the "
            "known case.",
            "py-spy dump --native --pid PID",
        ),
        by_hand(
            "Free the model before the group: train in a function that has returned when "
            "`dist.destroy_process_group()` is called; or `del model, optimizer` before it."
        ),
        RESTART,
    ),
    sources=(
        "torch: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, ~ProcessGroupGloo",
        "torch: torch/csrc/distributed/c10d/init.cpp, Reducer",
        "Python: C API, Releasing the GIL from extension code",
    ),
)
