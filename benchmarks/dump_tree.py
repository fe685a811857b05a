"""Dumps of very many ranks, reduced node by node and put together: CPU time, memory and the sizes of the files.

The dumps are made on the fly (not counted as time), 8 ranks a node, each with 200 calls in the groups of
``benchmarks/dumps.py``; each node's are reduced to one file, the files of 64 nodes to one, and those judged together.
torch's analyzer holds all dumps at once and has no such form. HOLDFAST_BENCH_TREE=1024,16384 chooses the sizes.
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
from holdfast.facts import dumps, reduced_dumps
from holdfast.facts.evidence import Kind, Piece
from holdfast.findings import Verdict
from holdfast.rules import dumps as rules

CALLS, NODE, RACK = 200, TENSOR, 64

_T = TypeVar("_T")


class Clock:
    """CPU seconds of what is asked of it, and nothing else."""

    def __init__(self) -> None:
        self.spent = 0.0

    def __call__(self, work: Callable[[list[Piece]], _T], pieces: list[Piece]) -> _T:
        """Do it."""
        begun = time.process_time()
        done = work(pieces)
        self.spent += time.process_time() - begun
        return done


def _piece(name: str, kind: Kind, data: bytes) -> Piece:
    return Piece(name, kind, len(data), lambda: BytesIO(data))


def _nodes(size: int) -> Iterator[list[Piece]]:
    for first in range(0, size, NODE):
        made = ((rank, record(rank, size, CALLS)) for rank in range(first, first + NODE))
        yield [_piece(f"trace_{rank}", Kind.DUMP, pickle.dumps(each.dump(), protocol=2)) for rank, each in made]


def _part(pieces: list[Piece]) -> bytes:
    return reduced_dumps.encode(dumps.reduce(pieces).reduced)


def _judged(pieces: list[Piece]) -> Verdict:
    return rules.judge(dumps.read(pieces))


def main() -> None:
    """Print one line a size."""
    print("| ranks | each node reduces its 8 dumps | its file | 64 files into one | judged | peak | holdfast says |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for size in map(int, os.environ.get("HOLDFAST_BENCH_TREE", "1024,16384").split(",")):
        leaves, racks, top = Clock(), Clock(), Clock()
        files: list[Piece] = []
        halves: list[Piece] = []
        weights: list[int] = []
        for node in _nodes(size):
            data = leaves(_part, node)
            weights.append(len(data))
            files.append(_piece(f"node{len(weights)}", Kind.REDUCED, data))
            if len(files) == RACK:
                halves.append(_piece(f"rack{len(halves)}", Kind.REDUCED, racks(_part, files)))
                files = []
        verdict = top(_judged, [*halves, *files])
        root = verdict.root
        says = f"{root.cause} rank {root.subject.rank}" if root else "nothing"
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"| {size} | {leaves.spent / len(weights) * 1e3:.0f} ms | {sum(weights) / len(weights) / 1e3:.0f} kB "
            f"| {racks.spent / max(len(halves), 1) * 1e3:.0f} ms | {top.spent:.2f} s | {peak:.0f} MiB | {says} |",
            flush=True,
        )
        assert says.endswith(f"rank {GUILTY}"), says


if __name__ == "__main__":
    main()
