"""Guarded evaluation without failures, next to a bare loop and a loop guarded by SIGALRM.

Two ranks on gloo (TCPStore) evaluate the same batches in turns: *bare* sums on each rank and
reduces once; *SIGALRM* all-reduces each metric of each batch under ``signal.alarm``, a common guard
against hangs; *guarded* is ``holdfast.evaluate``. Printed are medians over the turns, and the
median ratio to bare per turn.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

TURNS = 21
BATCHES = 60
METRICS = 4
#: Duration of a batch -> width of the two hidden layers.
MODELS = {"batches of about 1 ms": 1024, "batches of about 100 µs": 192}


def _metrics(model: Any, batch: Any) -> dict[str, Any]:
    out = model(batch)
    size = len(batch)
    return {f"metric{number}": (out.sum() + number, size) for number in range(METRICS)}


def _bare(model: Any, batches: Iterable[Any]) -> dict[str, float]:
    """Sum on each rank, and reduce once."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    sums: dict[str, list[float]] = {}
    model.eval()
    with torch.no_grad():
        for batch in batches:
            for name, (total, count) in _metrics(model, batch).items():
                before = sums.setdefault(name, [0.0, 0.0])
                before[0] += float(total)
                before[1] += count
    model.train()
    flat = torch.tensor([number for pair in sums.values() for number in pair], dtype=torch.float64)
    dist.all_reduce(flat)
    numbers = flat.tolist()
    return {name: numbers[2 * place] / numbers[2 * place + 1] for place, name in enumerate(sums)}


def _with_alarm(model: Any, batches: Iterable[Any]) -> dict[str, float]:
    """Reduce each metric of each batch over the ranks, each under its own alarm."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    def expired(*_: object) -> None:
        raise TimeoutError

    sums: dict[str, list[float]] = {}
    model.eval()
    with torch.no_grad():
        for batch in batches:
            for name, (total, count) in _metrics(model, batch).items():
                pair = torch.stack(
                    [total.double(), torch.tensor(float(count), dtype=torch.float64)]
                )
                previous = signal.signal(signal.SIGALRM, expired)
                signal.alarm(60)
                try:
                    dist.all_reduce(pair)
                finally:
                    signal.alarm(0)
                    signal.signal(signal.SIGALRM, previous)
                before = sums.setdefault(name, [0.0, 0.0])
                before[0] += float(pair[0])
                before[1] += float(pair[1])
    model.train()
    return {name: total / count for name, (total, count) in sums.items()}


def _rank(rank: int, port: int) -> None:
    """Run one rank; rank 0 prints the seconds per model and loop as JSON."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415

    import holdfast  # noqa: PLC0415

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    durations: dict[str, dict[str, list[float]]] = {}
    for title, width in MODELS.items():
        torch.manual_seed(0)
        layers = [
            nn.Linear(64, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        ]
        model, batches = nn.Sequential(*layers), [torch.randn(32, 64) for _ in range(BATCHES)]
        evaluation = holdfast.evaluate.Evaluation(model, batches, _metrics, budget="10m")
        loops: dict[str, Callable[[int], Any]] = {
            "bare": lambda _, model=model, batches=batches: _bare(model, batches),
            "guarded": lambda step, evaluation=evaluation: evaluation.run(step).metrics,
            "SIGALRM": lambda _, model=model, batches=batches: _with_alarm(model, batches),
        }
        times = durations[title] = {name: [] for name in loops}
        for turn in range(TURNS + 2):
            found = []
            for name, run_loop in loops.items():
                dist.barrier()
                began = time.perf_counter()
                found.append(run_loop(turn))
                if turn > 1:  # the first two turns are for warm-up
                    times[name].append(time.perf_counter() - began)
            for other in found[1:]:
                assert other.keys() == found[0].keys()
                assert all(abs(other[name] - value) < 1e-3 for name, value in found[0].items()), (
                    other,
                    found[0],
                )
    if rank == 0:
        print(json.dumps(durations), flush=True)
    dist.barrier()
    os._exit(0)


def main() -> None:
    """Print the table."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        __name__ if __name__ != "__main__" else "benchmarks.evaluation",
    ]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(port)],
            stdout=subprocess.PIPE if rank == 0 else None,
            text=True,
        )
        for rank in range(2)
    ]
    output, _ = ranks[0].communicate()
    ranks[1].wait()
    for title, times in json.loads(output).items():
        print(f"{title}, {BATCHES} batches per rank, {METRICS} metrics")
        for name, values in times.items():
            ratio = statistics.median(
                value / zero for value, zero in zip(values, times["bare"], strict=True)
            )
            added = statistics.median(
                value - zero for value, zero in zip(values, times["bare"], strict=True)
            )
            print(
                f"  {name:8} {1e3 * statistics.median(values):9.2f} ms {1e3 * added:+9.2f} ms "
                f"{ratio:8.3f} x bare"
            )
        saved = [
            1 - guarded / alarmed
            for guarded, alarmed in zip(times["guarded"], times["SIGALRM"], strict=True)
        ]
        print(f"  saved compared with SIGALRM: {100 * statistics.median(saved):.0f}%")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        _rank(int(sys.argv[1]), int(sys.argv[2]))
    else:
        main()
