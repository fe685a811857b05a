"""PROC009 exit-nonzero."""

from __future__ import annotations

from holdfast.causes.remedies import RESTART, WATCH, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

EXIT_NONZERO = Cause(
    code="PROC009",
    name="exit-nonzero",
    summary="A rank ended with a nonzero status that neither an exception nor a signal explains.",
    what_happens="sys.exit(3), os._exit(1), or a library that calls exit() after an internal "
    "error. The reason, if any, is in its earlier output.",
    shows_before="Calls of sys.exit or os._exit with a number, in code that one rank can run "
    "alone.",
    shows_during="The process has ended with that status; the trace file ends without an "
    "exception, with the line of sys.exit if it was called.",
    shows_after="torchrun: `failed (exitcode: N)` for that rank, no traceback. Survivors report a "
    "lost connection. 137 and 143 from a wrapper script mean signals 9 and 15.",
    known_misses="os._exit leaves no line. If the script runs in a shell wrapper, the status is "
    "the wrapper's.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
    ),
    log_examples=(
        (
            "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] "
            "Connection closed by peer [10.0.0.2]:4711\n"
            "[rank1]: RuntimeError: [gloo/transport/tcp/pair.cc:553] "
            "Connection closed by peer [10.0.0.2]:4711\n"
            "Root Cause (first observed failure):\n"
            "[0]:\n"
            "  rank      : 2 (local_rank: 2)\n"
            "  exitcode  : 7 (pid: 82)"
        ),
    ),
    alternatives=("python-exception-on-one-rank", "peer-lost"),
    may_be_consequence=True,
    remedies=(
        by_hand("Read the end of that rank's own log file in the run folder, stderr first."),
        by_hand("Raise an exception instead of calling exit, so that the reason is recorded."),
        WATCH,
        RESTART,
    ),
    sources=("Python: sys.exit, os._exit",),
)
