"""Compare one vision-language model under DDP, FSDP2 and ZeRO-1, 2, 3: cost per strategy.

Every strategy trains `examples/frameworks` in its own job, interleaved, in the given number of
rounds; figures are medians of the rounds. `--from` reads figures that were measured elsewhere, for
example on several hosts, by `torchrun … examples/frameworks/train.py --strategy S --save FOLDER
--measure FILE`. See `docs/frameworks.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.frameworks_table import Row, loss_difference, merge_rounds, recommend, row_of, table

TRAIN = Path(__file__).parents[1] / "examples" / "frameworks" / "train.py"
STRATEGIES = ("ddp", "fsdp2", "hybrid", "zero1", "zero2", "zero3")
LIMIT_S = 1800
GIB = 2**30


def main(arguments: list[str] | None = None) -> None:
    """Measure or read the figures, and print them."""
    options = parse_arguments(arguments if arguments is not None else [])
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in options.files] or measure_jobs(
        options
    )
    for line in report(runs, options.memory_gib):
        print(line)


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    parser.add_argument("--ranks", type=int, help="ranks per job (default: number of GPUs, else 4)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", help="model size (default: base on GPUs, else small)")
    parser.add_argument(
        "--precision", choices=["fp32", "bf16"], help="default: bf16 on GPUs, else fp32"
    )
    parser.add_argument(
        "--steps", type=int, default=12, help="steps per job; the first three are not timed"
    )
    parser.add_argument("--batch-size", type=int, default=4, help="images per step and rank")
    parser.add_argument(
        "--memory-gib", type=float, help="memory limit per rank (default: that of its GPU)"
    )
    parser.add_argument("--folder", type=Path, help="folder for checkpoints (default: temporary)")
    parser.add_argument("--json", type=Path, help="write the figures of every job there")
    parser.add_argument(
        "--from",
        dest="files",
        nargs="+",
        type=Path,
        default=[],
        help="figures that were measured elsewhere",
    )
    options = parser.parse_args(arguments)
    if not options.files:
        gpus, bytes_each = gpus_here()
        options.ranks = options.ranks or gpus or 4
        options.size = options.size or ("base" if gpus else "small")
        options.precision = options.precision or ("bf16" if gpus else "fp32")
        options.memory_gib = options.memory_gib or (bytes_each / GIB if gpus else None)
    return options


def gpus_here() -> tuple[int, int]:
    """Return the number of GPUs and the memory of the smallest in bytes."""
    import torch  # noqa: PLC0415 - not needed with --from

    count = torch.cuda.device_count()
    return count, min(
        (torch.cuda.get_device_properties(each).total_memory for each in range(count)), default=0
    )


def measure_jobs(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the figures of every job, with rounds interleaved."""
    found = []
    for number in range(options.rounds):
        for strategy in options.strategies:
            found.append(measure_job(strategy, options))
            state = found[-1].get("failed") or f"{found[-1]['samples_per_s']:.1f} samples/s"
            print(
                f"round {number + 1} of {options.rounds}, {strategy}: {state}",
                file=sys.stderr,
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(found, indent=2), encoding="utf-8")
    return found


def measure_job(strategy: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one job; return its figures, or the reason why it failed."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        file = Path(folder, "figures.json")
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={options.ranks}",
            str(TRAIN),
            "--strategy",
            strategy,
            "--size",
            options.size,
            "--steps",
            str(options.steps),
            "--precision",
            options.precision,
            "--batch-size",
            str(options.batch_size),
            "--save",
            f"{folder}/saved",
            "--measure",
            str(file),
        ]
        variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        try:
            done = subprocess.run(
                command,
                env=os.environ | variables,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"strategy": strategy, "failed": f"not done in {LIMIT_S} s"}
        if done.returncode or not file.exists():
            return {"strategy": strategy, "failed": failure_reason(done.stderr)}
        return dict(json.loads(file.read_text(encoding="utf-8")))


def failure_reason(errors: str) -> str:
    """Return why a job failed: its last exception line, or its exit message."""
    lines = [line.split("]:")[-1].strip() for line in errors.splitlines()]
    for line in lines:
        if "OutOfMemoryError" in line:
            return "out of memory"
        if line.endswith("as hybrid requires"):
            return line
    raised = [
        line
        for line in lines
        if line.split(":")[0].endswith("Error") and "ChildFailedError" not in line
    ]
    return raised[-1][:80] if raised else "it failed without an error message"


def report(runs: list[dict[str, Any]], memory_gib: float | None) -> list[str]:
    """Return title, table, recommendation, and notes."""
    rounds: dict[str, list[Row]] = defaultdict(list)
    for run in runs:
        failed = run.get("failed")
        rounds[run["strategy"]].append(
            Row(strategy=run["strategy"], failed=failed) if failed else row_of(run)
        )
    rows = sorted(
        (merge_rounds(each) for each in rounds.values()),
        key=lambda row: STRATEGIES.index(row.strategy),
    )
    described = next((run for run in runs if not run.get("failed")), None)
    if described is None:
        return [f"{row.strategy}: {row.failed}" for row in rows]
    choice = recommend(rows, int(memory_gib * GIB) if memory_gib else None)
    lines = [title(described, len(runs) // len(rows)), "", *table(rows), ""]
    lines += [
        f"recommended: {choice.strategy or 'none'}",
        *(f"  {sentence}" for sentence in choice.why),
    ]
    lines.append(f"  last losses differ by at most {loss_difference(rows):.0e}")
    if len(runs) == len(rows):
        lines.append("  one round: differences may be noise; use more rounds")
    if described["device"] == "CPU":
        lines.append(
            "  measured on CPUs with gloo: does not predict which strategy is faster on GPUs"
        )
    if mixed := _mixed(runs):
        lines.append(f"  not comparable: jobs differ in {', '.join(mixed)}")
    return lines


def title(run: dict[str, Any], rounds: int) -> str:
    """Return a description of the jobs."""
    return (
        f"{run['ranks']} ranks, {run['device']}, {run['parameters'] / 1e6:,.1f} M parameters, "
        f"{run['precision']}, "
        f"{run['batch_size']} images per rank, torch {run['torch']}, {rounds} "
        f"round{'s' * (rounds > 1)}"
    )


def _mixed(runs: list[dict[str, Any]]) -> list[str]:
    same = ("size", "ranks", "device", "precision", "batch_size", "frozen_vision", "torch")
    ran = [run for run in runs if not run.get("failed")]
    return [name for name in same if len({run[name] for run in ran}) > 1]


if __name__ == "__main__":
    main(sys.argv[1:])
