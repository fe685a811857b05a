"""Treatments: the kinds of faults, as far as the kind decides what the recovery policy does."""

from __future__ import annotations

from enum import StrEnum


class Treatment(StrEnum):
    """What kind of fault a cause is, and so which recovery may help."""

    AGAIN = "again"  #: a restart may help by itself: an external fault, or an unknown one
    CODE = "code"  #: the program or its settings: the same fails again at the same place
    MEMORY = "memory"  #: GPU memory: split the batch into smaller pieces
    HOST_MEMORY = "host memory"  #: fewer data-loader workers
    NUMERICS = "numerics"  #: NaN, Inf, a loss spike: go back, and skip the batches
    SUSPECT = "suspect"  #: the host may be at fault: restart, and without the host the second time
    BAD_HOST = "bad host"  #: the host is at fault: restart without it, where that is possible
    SLOW_HOST = "slow host"  #: a straggler: reported, and excluded where the user allows it
    CHECKPOINT = "checkpoint"  #: the checkpoint that was loaded is damaged: use an older one
