"""Analysis of flight-recorder dumps of whole jobs: CPU time and memory, next to torch's analyzer.

2,000 calls per rank with 30 frames each, in tensor-parallel groups of 8, data-parallel groups
across them, and the world; one rank never enters the last call. Both read the same files, each in
its own process; imports are not counted. HOLDFAST_BENCH_RANKS=8,64,256,1024 selects the numbers of
ranks; 1,024 ranks take 0.7 GB of disk and five minutes.
"""

from __future__ import annotations

import os
import pickle
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.unit.diagnose.many_dumps import Groups, Recorder

CALLS, DEPTH, TENSOR, GUILTY = 2000, 30, 8, 2
#: Maximum number of ranks -> rounds; one round above.
ROUNDS = {8: 7, 64: 5, 256: 3}
PREFIX = "nccl_trace_rank_"

_OURS = """
import resource, sys, time
from pathlib import Path
from holdfast.diagnose.dumps import dump_set as dumps
from holdfast.diagnose.evidence import EvidenceKind, EvidenceFile
from holdfast.diagnose.dumps import rules
began = time.process_time()
files = sorted(Path(sys.argv[1]).iterdir())
table = dumps.read_dumps(
    EvidenceFile(path.name, EvidenceKind.DUMP, None, lambda path=path: path.open("rb"))
    for path in files
)
root = rules.judge(table).root
spent = time.process_time() - began
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
found = f"{root.cause} rank {root.subject.rank}" if root else "none"
print(f"RESULT {spent:.3f} {memory:.0f} {found}")
"""
_TORCH = """
import resource, sys, time
from torch.distributed.flight_recorder import fr_trace
began = time.process_time()
fr_trace.main([sys.argv[1], "-p", "nccl_trace_rank_"])
spent = time.process_time() - began
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(f"RESULT {spent:.3f} {memory:.0f} (prints blocks)")
"""


def _groups(size: int, rank: int) -> Groups:
    """Return the groups of a rank: world, tensor-parallel, data-parallel."""
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
    return frames + [
        {"name": f"layer_{at}", "filename": "/job/model.py", "line": at} for at in range(DEPTH - 2)
    ]


_STACKS = [_frames(line) for line in range(41, 49)]


def record(rank: int, size: int, calls: int) -> Recorder:
    """Return a rank's flight recorder; rank GUILTY never enters the last call."""
    groups = _groups(size, rank)
    recorder = Recorder(rank, groups)
    _, tensor, data = groups
    for number in range(calls - (rank == GUILTY)):
        at = number % 8
        group, name = [(tensor, "all_reduce"), (data, "_all_gather_base"), ("0", "all_reduce")][
            (at > 4) + (at == 7)
        ]
        state = "completed" if number < calls - 1 else "scheduled"
        recorder.call(
            name, group, state=state, frames=[*_STACKS[at]], thread_id=str(140393171504000 + rank)
        )
    return recorder


def _write(folder: Path, size: int) -> None:
    for rank in range(size):
        (folder / f"{PREFIX}{rank}").write_bytes(
            pickle.dumps(record(rank, size, CALLS).dump(), protocol=2)
        )


def _run(program: str, folder: Path) -> tuple[float, float, str]:
    """Run an analyzer; return CPU seconds, peak MiB and its verdict."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        check=True,
        text=True,
        capture_output=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    _, spent, memory, verdict = line.split(maxsplit=3)
    return float(spent), float(memory), verdict


def _compare(folder: Path, rounds: int) -> tuple[float, float, float, float, float, str]:
    """Return median CPU seconds of holdfast and torch, their ratio, peaks in MiB, and the verdict.

    In each round holdfast runs before and after torch and its mean counts, because the speed of the
    machine drifts.
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
    """Print one line per number of ranks."""
    sizes = [int(size) for size in os.environ.get("HOLDFAST_BENCH_RANKS", "8,64").split(",")]
    print(
        "| ranks | dumps | holdfast: CPU, peak | torchfrtrace: CPU, peak | ratio of CPU | rounds | "
        "verdict of holdfast |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for size in sizes:
        rounds = next((rounds for most, rounds in ROUNDS.items() if size <= most), 1)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            _write(folder, size)
            size_mb = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
            ours, theirs, ratio, memory, their_memory, verdict = _compare(folder, rounds)
        print(
            f"| {size} | {size_mb:.1f} MB | {ours:.2f} s, {memory:.0f} MiB | {theirs:.2f} s, "
            f"{their_memory:.0f} MiB "
            f"| 1/{ratio:.1f} | {rounds} | {verdict} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
