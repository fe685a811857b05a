"""PROC002 python-exception-all-ranks."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

PYTHON_EXCEPTION_ALL_RANKS = Cause(
    code="PROC002",
    name="python-exception-all-ranks",
    summary="The same ordinary exception on every rank: a bad path, option or command, or a bug.",
    what_happens="All ranks run the same wrong line: a file that does not exist, a missing "
    "module, a shape error in the model, a renamed argument. They fail within moments of each "
    "other; the first one is listed.",
    shows_before="Often visible with one process: the same command with --nproc-per-node 1.",
    shows_during="No hang. Every trace file ends with an exception of the same type at the same "
    "line.",
    shows_after="The same traceback from several ranks, interleaved by line or by character; "
    "torchrun's table then names one rank as the `Root Cause (first observed failure)`, although "
    "it is not special.",
    known_misses="If the launcher ended the slower ranks before they raised, only some show it: "
    "then one of them is named, as python-exception-on-one-rank, with the same advice.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
    ),
    signals=(
        LogSignal(
            name="program-refused",
            tier=Tier.NAMED,
            confidence=0.75,
            sentence="the program did not start: its module or script is missing, or it does not "
            "know an argument",
            patterns=(
                (
                    r"python[\d.]*: (?:No module named|can't (?:open file|find '__main__')"
                    r"|Error while finding module specification)"
                ),
                (
                    r"error: (?:unrecognized arguments: |the following arguments are required: "
                    r"|ambiguous option: |one of the arguments .{1,200} is required)"
                ),
                r"error: argument \S{1,80}: (?:invalid|expected|not allowed|ignored explicit)",
                (
                    r"FATAL Flags parsing error|\bError: (?:No such option|Missing (?:option"
                    r"|argument)|Invalid value for|Got unexpected extra argument)"
                ),
                r"\bCould not override '[^']{1,200}'|\bIn '[^']{1,200}': Could not find '",
            ),
            examples=(
                "/usr/bin/python3: No module named torch.distributed.run",
                "python: can't open file '/job/fit.py': [Errno 2] No such file or directory",
                (
                    "usage: fit.py [-h] [--lr LR]\nfit.py: error: unrecognized arguments: "
                    "--local-rank=1"
                ),
                "fit.py: error: argument --lr: invalid float value: 'high'",
                "Could not override 'model.depth'.\nKey 'depth' is not in struct",
            ),
            counter_examples=("INFO error: argument checks passed",),
        ),
    ),
    log_examples=(
        (
            "[rank2]: Traceback (most recent call last):\n"
            '[rank2]:   File "/job/train.py", line 41, in step\n'
            "[rank2]:     use(x)\n"
            "[rank2]: ValueError: bad shape\n"
            "[rank3]: Traceback (most recent call last):\n"
            '[rank3]:   File "/job/train.py", line 41, in step\n'
            "[rank3]:     use(x)\n"
            "[rank3]: ValueError: bad shape"
        ),
    ),
    alternatives=("python-exception-on-one-rank", "comm-config-bad"),
    may_be_consequence=True,
    may_start_failure=True,
    treatment=Treatment.CODE,
    remedies=(
        disruptive(
            "Reproduce it with one process, where the traceback is not interleaved.",
            "holdfast run --standalone --nproc-per-node 1 SCRIPT",
        ),
        by_hand("Restarting will fail again; fix this line first."),
    ),
    sources=("torch: torch/distributed/elastic/multiprocessing/errors/__init__.py",),
)
