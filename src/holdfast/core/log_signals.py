"""Log signals: the log lines that point to a cause. The files of the catalogue declare them."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class Tier(IntEnum):
    """How near to the root cause a line is; the smaller, the nearer.

    A line of a later tier is often an echo of one of an earlier tier.
    """

    MACHINE = 0  #: a kernel, driver or switch reports a fault of the machine
    NAMED = 1  #: an error message that names its own cause
    DEVICE = 2  #: an error of a device, of storage or of the numbers
    EXCEPTION = 3  #: a Python exception
    NETWORK = 4  #: a connection or a rendezvous failed
    OUTSIDE = 5  #: a scheduler, a person or a lost node ended the job
    CRASH = 6  #: a signal ended a process
    LOST = 7  #: a surviving rank reports that a peer is gone
    WAITING = 8  #: a rank reports that it waited in vain
    SILENCE = 9  #: nothing but the end of the output, or an exit code


class AnchoredPattern(msgspec.Struct, frozen=True):
    """A pattern for a line without its prefix (rank, host, time); it may begin with ``^``.

    The scanner searches the raw line for ``find``, which must match wherever ``expression`` does.
    """

    expression: str
    find: str


class LogSignal(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of log line that points to the cause in whose file it is declared.

    ``patterns`` are regular expressions without look-around and back-references, so that Hyperscan
    can search for all of them at once; named groups become fields of the signal. ``confidence`` is
    that of one such line, ``sentence`` the message of the finding.

    ``examples`` are log lines (a line feed separates several) for which the verdict must name the
    cause; for ``counter_examples`` it must name none. Both are tests.

    ``weighed``: a rule in ``diagnose/log_rules`` reads the signal together with other lines; any
    other signal names its cause directly. ``explained_by``: a signal of which this one is an effect
    where both are logged. Among signals of equal tier and confidence the lowest
    ``precedence`` wins, then the order of the catalogue.
    """

    name: str
    tier: Tier
    confidence: float
    sentence: str
    patterns: tuple[str | AnchoredPattern, ...] = ()
    examples: tuple[str, ...] = ()
    counter_examples: tuple[str, ...] = ()
    weighed: bool = False
    precedence: int = 0
    explained_by: str = ""
