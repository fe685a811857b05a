"""PROC001 python-exception-on-one-rank."""

from __future__ import annotations

from holdfast.causes.remedies import RESTART, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.treatments import Treatment

PYTHON_EXCEPTION_ON_ONE_RANK = Cause(
    code="PROC001",
    name="python-exception-on-one-rank",
    summary="An ordinary exception on one rank is the root cause; the other ranks fail as a "
    "consequence.",
    what_happens="One rank raises: a broken file, a key missing in its shard, a permission, an "
    "assertion on its data. Its process ends; the launcher ends the others, which by then report "
    "lost connections in longer messages than the root.",
    shows_before="Nothing in general: the data or the environment of one rank differs. Check code "
    "that only rank 0 runs first.",
    shows_during="The rank's trace file records the exception, its text and the innermost frame "
    "of the user's code when it occurs; the others are in the next collective.",
    shows_after="A traceback on one rank, exit status 1, and on the others `Connection closed by "
    "peer`, SIGTERM from the launcher, or a timeout. torchrun names the right rank, with "
    "`error_file: <N/A>` unless the script uses @record.",
    known_misses="An exception about the connection itself is an echo and never the root. A rank "
    "that catches the exception and hangs in its handler shows the handler's line. Interleaved "
    "output of many ranks can hide the text; the trace file has all of it.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.HOST,
    ),
    log_examples=(
        (
            "[rank2]: Traceback (most recent call last):\n"
            '[rank2]:   File "/job/train.py", line 41, in step\n'
            "[rank2]:     use(x)\n"
            "[rank2]: ValueError: bad shape"
        ),
    ),
    alternatives=("python-exception-all-ranks", "model-download-race"),
    may_be_consequence=True,
    may_start_failure=True,
    treatment=Treatment.CODE,
    remedies=(
        by_hand(
            "Fix the error in the traceback; it is in the verdict and in that rank's own log file."
        ),
        by_hand(
            "Let torchrun record it too: decorate main with "
            "`torch.distributed.elastic.multiprocessing.errors.record`."
        ),
        RESTART,
    ),
    sources=("mosaicml/llm-foundry#749", "torch: torch/distributed/elastic/multiprocessing/errors"),
)
