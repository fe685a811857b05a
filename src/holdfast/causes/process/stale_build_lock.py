"""PROC011 stale-build-lock."""

from __future__ import annotations

from holdfast.causes.remedies import WATCH, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

STALE_BUILD_LOCK = Cause(
    code="PROC011",
    name="stale-build-lock",
    summary="Ranks wait for the build lock of an extension, and the process that held it is gone.",
    what_happens="torch builds C++ and CUDA extensions when they are first loaded (DeepSpeed's "
    "operators, load_inline, many custom kernels). One process builds, the others wait until the "
    "file `lock` in the build folder is removed. It is a plain file: a job that was killed during "
    "the build leaves it behind, and all ranks of every later job wait for it, without a message "
    "and without a timeout.",
    shows_before="A file `lock` in a folder of ~/.cache/torch_extensions (or "
    "TORCH_EXTENSIONS_DIR), older than the job.",
    shows_during="Every rank that loads the extension is in FileBaton.wait "
    "(torch/utils/file_baton.py), uses no CPU, and no process compiles.",
    shows_after="`wait` in file_baton.py, in a stack dump or in the traceback of an interrupted "
    "rank. The other ranks, if any, time out in their next collective.",
    known_misses="Another job that shares the folder, on this host or over a network file system, "
    "may be building right now; only the ranks of this job are checked.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
    ),
    signals=(
        LogSignal(
            name="build-lock",
            tier=Tier.NAMED,
            confidence=0.8,
            sentence="a rank waits for the build lock of an extension",
            patterns=(
                r'file_baton\.py", line \d+,? in wait|\bwait \(\S{0,120}file_baton\.py:\d+\)',
                r"waiting for baton release at \S+",
                "[Ww]aiting (?:for|on) (?:the )?(?:build|compilation) lock",
            ),
            examples=(
                (
                    '  File "/env/site-packages/torch/utils/file_baton.py", line 42, '
                    "in wait\n"
                    "    time.sleep(self.wait_seconds)\n"
                    "KeyboardInterrupt"
                ),
                (
                    "Thread 0x00007f2b (most recent call first):\n"
                    '  File "/env/torch/utils/file_baton.py", line 50 in wait\n'
                    '  File "/env/torch/utils/cpp_extension.py", line 2156 in '
                    "_jit_compile"
                ),
                (
                    'Thread 20711 (idle): "MainThread"\n'
                    "    wait (torch/utils/file_baton.py:42)\n"
                    "    _jit_compile (torch/utils/cpp_extension.py:1721)"
                ),
                ("[aiter] waiting for baton release at /root/.aiter/jit/build/lock_module_moe"),
            ),
            counter_examples=(
                (
                    "Using /root/.cache/torch_extensions/py310_cu121 as PyTorch "
                    "extensions root...\n"
                    "ninja: no work to do."
                ),
            ),
        ),
    ),
    may_recover=True,
    remedies=(
        by_hand(
            "Check that no process builds there, and remove the lock.",
            "find ${TORCH_EXTENSIONS_DIR:-~/.cache/torch_extensions} -name lock -mmin +10 -delete",
        ),
        by_hand(
            "Build before training, in one process (DeepSpeed: DS_BUILD_OPS=1 at its "
            "installation), or give each job a separate folder with TORCH_EXTENSIONS_DIR."
        ),
        WATCH,
    ),
    sources=(
        "torch: torch/utils/file_baton.py",
        "torch: torch/utils/cpp_extension.py, _jit_compile",
    ),
)
