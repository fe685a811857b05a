"""PROC012 group-left-at-exit."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

GROUP_LEFT_AT_EXIT = Cause(
    code="PROC012",
    name="group-left-at-exit",
    summary="A rank's script ended without destroy_process_group, and its process aborted during "
    "Python's shutdown.",
    what_happens="The threads of a process group outlive the script. If one of them needs "
    "Python's lock (GIL) while the interpreter shuts down, it is terminated inside C++ code "
    "(Python up to 3.13), which aborts the whole process: `terminate called without an active "
    "exception`, SIGABRT. It is a race: the same program ends well most of the time (measured on "
    "torch 2.13 and gloo: three ranks that only reduce and end, aborted in 4 of 12 runs).",
    shows_before="A script that calls init_process_group but not destroy_process_group, or "
    "returns before it.",
    shows_during="Nothing: training is over, and all steps were completed.",
    shows_after="Exit status -6 of a rank whose script had ended, and that one sentence. The "
    "launcher counts it as a failure, ends the other ranks, and may restart the whole job.",
    known_misses="Without a trace file the end of the script is unknown: an unjoined thread of "
    "the program causes the same message. If other ranks still wait for this one, that is named "
    "instead (rank-exits-early).",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.SOURCE,
    ),
    signals=(
        LogSignal(
            name="left-at-exit",
            tier=Tier.SILENCE,
            confidence=0.5,
            sentence="a process was aborted by a thread that outlived its script",
            patterns=(r"^(?:\[.{1,40}\]:? ?)?terminate called without an active exception",),
            examples=("terminate called without an active exception",),
            counter_examples=(
                (
                    "[rank0]:[W203 04:05:06.1 ProcessGroupNCCL.cpp:1553] Warning: "
                    "destroy_process_group() was not called before exit"
                ),
            ),
        ),
    ),
    treatment=Treatment.CODE,
    remedies=(
        by_hand(
            "Call `dist.destroy_process_group()` as the script's last step, on every rank, "
            "also when it leaves early (try … finally)."
        ),
        by_hand(
            "The work was already done: check that the last checkpoint is complete instead "
            "of restarting."
        ),
    ),
    sources=(
        "Python: C API, Thread State and the Global Interpreter Lock, at finalization",
        "pytorch/pytorch: docs/source/distributed.md, Shutdown",
    ),
)
