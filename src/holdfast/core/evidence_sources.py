"""Where a cause of failure can be seen."""

from __future__ import annotations

from enum import StrEnum


class EvidenceSource(StrEnum):
    """A kind of evidence that can show a cause; the value is its name in texts."""

    LOG = "log"  #: output of ranks, launchers, schedulers and the kernel (`holdfast diagnose`)
    TRACE = "trace file"  #: recorded by `holdfast run`, with stacks and counters of the processes
    DUMP = "flight-recorder dump"  #: written by torch
    STACKS = "stacks"  #: stack dumps, and `holdfast attach`
    HOST = "host check"  #: `holdfast check` and `connect`
    ENVIRONMENT = "environment variables"  #: `holdfast env`, with launch scripts
    SOURCE = "source code"  #: `holdfast lint`
    CHECKPOINT = "checkpoint"  #: `holdfast ckpt`
    SNAPSHOT = "memory snapshot"  #: written by torch
    PLAN = "planned configuration"  #: `holdfast plan`
