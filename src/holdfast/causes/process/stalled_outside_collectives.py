"""PROC010 stalled-outside-collectives."""

from __future__ import annotations

from holdfast.causes.remedies import WATCH, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.treatments import Treatment

STALLED_OUTSIDE_COLLECTIVES = Cause(
    code="PROC010",
    name="stalled-outside-collectives",
    summary="A rank hangs outside of any collective, and no rank waits for it in one.",
    what_happens="A rank hangs in Python, or at the end of its process, while the others have "
    "ended or are idle as well: a metrics client that flushes to an unreachable server, an exit "
    "handler, a non-daemon thread, a lock, a queue, an input that never arrives. No process "
    "group's timeout applies, so nothing ends it: the nodes stay allocated.",
    shows_before="Clients of trackers and object stores without a timeout; `thread.join()` and "
    "`queue.get()` without one; threads started without `daemon=True`.",
    shows_during="No call is in flight on any rank; two stack samples of the rank are equal and "
    "it uses no CPU. If the script has ended, the trace file records it, and the process still "
    "exists.",
    shows_after="Nothing, or the scheduler's time limit hours later. torchrun waits for the "
    "process without a limit.",
    known_misses="A rank that serves requests, or waits for a long upload, looks the same: its "
    "limit is half an hour (HOLDFAST_ALONE_S), and a rank that uses CPU or moves data is never "
    "named. Only the main thread's stack is shown; if the script has ended, that is the "
    "interpreter waiting for another thread.",
    evidence_sources=(
        EvidenceSource.TRACE,
        EvidenceSource.STACKS,
    ),
    may_be_consequence=True,
    may_recover=True,
    treatment=Treatment.SUSPECT,
    remedies=(
        by_hand(
            "Add a timeout to the call at that line, and let it fail with a warning: "
            "training is over."
        ),
        by_hand("Make helper threads daemons, or end them before the script ends."),
        by_hand(
            "If the wait is intended, raise the limit: HOLDFAST_ALONE_S=7200, or "
            '`holdfast.phase("upload", budget="2h")` around it.'
        ),
        WATCH,
    ),
    sources=(
        "Python: threading, at exit every thread that is no daemon is joined",
        "facebookresearch/fairseq#4619",
        "ultralytics/yolov5#5160",
        "wandb/wandb#4929",
    ),
)
