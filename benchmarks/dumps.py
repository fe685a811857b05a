"""Flight-recorder dumps of whole jobs judged: CPU time and memory beside the analyzer that ships with torch.

2,000 calls a rank with 30 frames each; tensor-parallel groups of 8, data-parallel groups across them and the world; one
rank never enters the last call. Both read the same files, each in a process of its own; the imports of either are not
counted as time. HOLDFAST_BENCH_RANKS=8,64,256,1024 chooses the sizes; 1,024 ranks take 0.7 GB of disk and five
minutes.
"""

from __future__ import annotations

import os
import pickle
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.facts.many_dumps import Groups, Recorder

CALLS, DEPTH, TENSOR, GUILTY = 2000, 30, 8, 2
#: Up to so many ranks, so many rounds; beyond, one.
ROUNDS = {8: 7, 64: 5, 256: 3}
PREFIX = "nccl_trace_rank_"

_OURS = """
import resource, sys, time
from pathlib import Path
from holdfast.facts import dumps
from holdfast.facts.evidence import Kind, Piece
from holdfast.rules import dumps as rules
began = time.process_time()
files = sorted(Path(sys.argv[1]).iterdir())
table = dumps.read(Piece(path.name, Kind.DUMP, None, lambda path=path: path.open("rb")) for path in files)
root = rules.judge(table).root
spent = time.process_time() - began
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(f"RESULT {spent:.3f} {memory:.0f} {root.cause if root else 'none'} rank {root.subject.rank if root else '-'}")
"""
_TORCH = """
import resource, sys, time
from torch.distributed.flight_recorder import fr_trace
began = time.process_time()
fr_trace.main([sys.argv[1], "-p", "nccl_trace_rank_"])
spent = time.process_time() - began
print(f"RESULT {spent:.3f} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} (prints blocks)")
"""


def _groups(size: int, rank: int) -> Groups:
    """The groups of one rank: the world, its tensor-parallel group, its data-parallel group."""
    mine, lane = divmod(rank, TENSOR)
    return {
        "0": ("default_pg", range(size)),
        str(1 + mine): ("tp", range(mine * TENSOR, (mine + 1) * TENSOR)),
        str(1 + size // TENSOR + lane): ("dp", range(lane, size, TENSOR)),
    }


def _frames(line: int) -> list[dict[str, object]]:
    file = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    frames: list[dict[str, object]] = [{"name": "all_reduce", "filename": file, "line": 3245}]
    frames.append({"name": "train_step", "filename": "/job/train.py", "line": line})
    return frames + [{"name": f"layer_{at}", "filename": "/job/model.py", "line": at} for at in range(DEPTH - 2)]


_STACKS = [_frames(line) for line in range(41, 49)]


def record(rank: int, size: int, calls: int) -> Recorder:
    """One rank's flight recorder; rank GUILTY never enters the last call."""
    groups = _groups(size, rank)
    recorder = Recorder(rank, groups)
    _, tensor, data = groups
    for number in range(calls - (rank == GUILTY)):
        at = number % 8
        group, name = [(tensor, "all_reduce"), (data, "_all_gather_base"), ("0", "all_reduce")][(at > 4) + (at == 7)]
        state = "completed" if number < calls - 1 else "scheduled"
        recorder.call(name, group, state=state, frames=[*_STACKS[at]], thread_id=str(140393171504000 + rank))
    return recorder


def _write(folder: Path, size: int) -> None:
    for rank in range(size):
        (folder / f"{PREFIX}{rank}").write_bytes(pickle.dumps(record(rank, size, CALLS).dump(), protocol=2))


def _run(program: str, folder: Path) -> tuple[float, float, str]:
    """CPU seconds, MiB and verdict of one side."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], check=True, text=True, capture_output=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    _, spent, memory, verdict = line.split(maxsplit=3)
    return float(spent), float(memory), verdict


def _compare(folder: Path, rounds: int) -> tuple[float, float, float, float, float, str]:
    """Medians of: our CPU seconds and theirs, and how many times theirs they are; peaks in MiB; what we say.

    In each round ours runs before and after theirs, and the mean counts, as the machine's speed moves in between.
    """
    times, peaks, verdict = [], (0.0, 0.0), ""
    for _ in range(rounds):
        before, memory, verdict = _run(_OURS, folder)
        theirs, their_memory, _ = _run(_TORCH, folder)
        ours = (before + _run(_OURS, folder)[0]) / 2
        times.append((ours, theirs, theirs / ours))
        peaks = (max(peaks[0], memory), max(peaks[1], their_memory))
    ours, theirs, ratio = (statistics.median(column) for column in zip(*times, strict=True))
    return ours, theirs, ratio, *peaks, verdict


def main() -> None:
    """Print one line a size."""
    sizes = [int(size) for size in os.environ.get("HOLDFAST_BENCH_RANKS", "8,64").split(",")]
    print("| ranks | dumps | holdfast: CPU, peak | torchfrtrace: CPU, peak | ratio of CPU | rounds | holdfast says |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for size in sizes:
        rounds = next((rounds for most, rounds in ROUNDS.items() if size <= most), 1)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            _write(folder, size)
            weight = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
            ours, theirs, ratio, memory, their_memory, verdict = _compare(folder, rounds)
        print(
            f"| {size} | {weight:.1f} MB | {ours:.2f} s, {memory:.0f} MiB | {theirs:.2f} s, {their_memory:.0f} MiB "
            f"| 1/{ratio:.1f} | {rounds} | {verdict} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
