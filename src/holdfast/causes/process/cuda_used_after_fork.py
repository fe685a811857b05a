"""PROC015 cuda-used-after-fork."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

CUDA_USED_AFTER_FORK = Cause(
    code="PROC015",
    name="cuda-used-after-fork",
    summary="A process that was forked after its parent had used the GPU uses it too.",
    what_happens="CUDA cannot be used in a forked child if the parent initialized it before. The "
    "child is a data-loader worker whose dataset holds tensors on a GPU, or a rank that a script "
    "or notebook forks after a first `.cuda()`. The child raises; the other ranks wait for its "
    "rank.",
    shows_before="Tensors on a GPU in a dataset's constructor, `torch.load` without map_location "
    "there, or `.cuda()` above mp.Process with the start method fork.",
    shows_during="Nothing: the first batch, or the first use of the GPU, raises.",
    shows_after="`Cannot re-initialize CUDA in forked subprocess`, or `CUDA error: initialization "
    "error` in a worker.",
    known_misses="`initialization error` in a process that was not forked is one of the driver. "
    "Other libraries that use CUDA in a worker print messages of their own.",
    evidence_sources=(EvidenceSource.LOG,),
    signals=(
        LogSignal(
            name="cuda-in-fork",
            tier=Tier.NAMED,
            confidence=0.9,
            sentence="a forked process used CUDA, which its parent had initialized",
            patterns=(
                "Cannot re-initialize CUDA in forked subprocess",
                (
                    "(?:CUDA|HIP) (?:error|driver error|failure)(?: \\d+)?: (?:'?initialization "
                    "error|no device \\(forked\\))"
                ),
                "Cannot use CUDA after fork|CUDA_ERROR_NOT_INITIALIZED.{0,80}fork",
                "was already initialized.{0,60}\\bfork(?:ed)?\\b",
            ),
            examples=(
                (
                    "[rank2]: RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use "
                    "CUDA with multiprocessing, you must use the 'spawn' start method"
                ),
                (
                    "RuntimeError: Caught RuntimeError in DataLoader worker process 1.\n"
                    "Original Traceback (most recent call last):\n"
                    '  File "/w/data.py", line 30, in __getitem__\n'
                    "RuntimeError: CUDA error: initialization error"
                ),
            ),
            counter_examples=(
                (
                    "huggingface/tokenizers: The current process just got forked, after "
                    "parallelism has already been used. Disabling parallelism"
                ),
            ),
        ),
    ),
    alternatives=("dataloader-worker-died", "cuda-driver-mismatch"),
    treatment=Treatment.CODE,
    remedies=(
        by_hand(
            "Keep datasets on the CPU (`torch.load(..., map_location='cpu')`), and move batches to "
            "the GPU in the training loop."
        ),
        disruptive(
            "Start the processes anew instead of forking: `DataLoader(..., "
            "multiprocessing_context='spawn')`, or `mp.set_start_method('spawn')` before the first "
            "use of CUDA."
        ),
    ),
    sources=("pytorch/pytorch#40403", "pytorch/pytorch#2971"),
)
