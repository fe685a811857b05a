"""Dumps of very many ranks, reduced per node and merged: CPU time, memory and file sizes.

The dumps are generated on the fly (not counted): 8 ranks per node, each with 200 calls in the
groups of ``benchmarks/dumps.py``. Each node's dumps are reduced to one file, the files of 64 nodes
to one, and those are analyzed together. torch's analyzer holds all dumps in memory and has no such
form. HOLDFAST_BENCH_TREE=1024,16384 selects the numbers of ranks.
"""

from __future__ import annotations

import os
import pickle
import resource
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import TypeVar

from benchmarks.dumps import GUILTY, TENSOR, record
from holdfast.core.findings import Verdict
from holdfast.diagnose.dumps import dump_set, reduced_dumps, rules
from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind

CALLS, NODE, RACK = 200, TENSOR, 64

_T = TypeVar("_T")


class CpuTimer:
    """Adds up the CPU seconds of the calls made through it."""

    def __init__(self) -> None:
        self.spent = 0.0

    def __call__(
        self, work: Callable[[list[EvidenceFile]], _T], evidence: list[EvidenceFile]
    ) -> _T:
        """Call ``work`` and add its CPU time."""
        begun = time.process_time()
        done = work(evidence)
        self.spent += time.process_time() - begun
        return done


def _evidence(name: str, kind: EvidenceKind, data: bytes) -> EvidenceFile:
    return EvidenceFile(name, kind, len(data), lambda: BytesIO(data))


def _nodes(size: int) -> Iterator[list[EvidenceFile]]:
    for first in range(0, size, NODE):
        made = ((rank, record(rank, size, CALLS)) for rank in range(first, first + NODE))
        yield [
            _evidence(f"trace_{rank}", EvidenceKind.DUMP, pickle.dumps(each.dump(), protocol=2))
            for rank, each in made
        ]


def _reduce(evidence: list[EvidenceFile]) -> bytes:
    return reduced_dumps.encode(dump_set.reduce_files(evidence).reduced)


def _judge(evidence: list[EvidenceFile]) -> Verdict:
    return rules.judge(dump_set.read_dumps(evidence))


def main() -> None:
    """Print one line per number of ranks."""
    print(
        "| ranks | each node reduces its 8 dumps | its file | 64 files into one | judged | peak | "
        "holdfast reports |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for size in map(int, os.environ.get("HOLDFAST_BENCH_TREE", "1024,16384").split(",")):
        node_timer, rack_timer, verdict_timer = CpuTimer(), CpuTimer(), CpuTimer()
        node_files: list[EvidenceFile] = []
        rack_files: list[EvidenceFile] = []
        file_sizes: list[int] = []
        for node in _nodes(size):
            data = node_timer(_reduce, node)
            file_sizes.append(len(data))
            node_files.append(_evidence(f"node{len(file_sizes)}", EvidenceKind.REDUCED, data))
            if len(node_files) == RACK:
                rack_files.append(
                    _evidence(
                        f"rack{len(rack_files)}",
                        EvidenceKind.REDUCED,
                        rack_timer(_reduce, node_files),
                    )
                )
                node_files = []
        verdict = verdict_timer(_judge, [*rack_files, *node_files])
        root = verdict.root
        reported = f"{root.cause} rank {root.subject.rank}" if root else "nothing"
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"| {size} | {node_timer.spent / len(file_sizes) * 1e3:.0f} ms | "
            f"{sum(file_sizes) / len(file_sizes) / 1e3:.0f} kB "
            f"| {rack_timer.spent / max(len(rack_files), 1) * 1e3:.0f} ms | "
            f"{verdict_timer.spent:.2f} s | {peak:.0f} MiB | {reported} |",
            flush=True,
        )
        assert reported.endswith(f"rank {GUILTY}"), reported


if __name__ == "__main__":
    main()
