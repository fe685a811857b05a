"""The same vision-language model under DDP, FSDP2 (full, hybrid) and ZeRO-1, 2, 3: what each costs, and which to take.

Every strategy trains `examples/frameworks` in a job of its own, all in turns, in as many rounds as are asked for; the
figures are medians of the rounds. With `--from` the figures were made elsewhere, on several hosts for example, by
`torchrun … examples/frameworks/train.py --strategy S --save FOLDER --measure FILE`. `docs/frameworks.md` explains them.
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

from benchmarks.frameworks_table import Row, apart, median, recommend, row_of, table

TRAIN = Path(__file__).parents[1] / "examples" / "frameworks" / "train.py"
STRATEGIES = ("ddp", "fsdp2", "hybrid", "zero1", "zero2", "zero3")
LIMIT_S = 1800
GIB = 2**30


def main(arguments: list[str] | None = None) -> None:
    """Measure or read, and print."""
    told = parsed(arguments if arguments is not None else [])
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in told.made] or measured(told)
    for line in report(runs, told.memory_gib):
        print(line)


def parsed(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    parser.add_argument("--ranks", type=int, help="of each job (default: the GPUs here, else 4)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", help="of the model (default: base on GPUs, else small)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], help="(default: bf16 on GPUs, else fp32)")
    parser.add_argument("--steps", type=int, default=12, help="of each job; the first three are not timed")
    parser.add_argument("--batch-size", type=int, default=4, help="images of a step and rank")
    parser.add_argument("--memory-gib", type=float, help="what a rank may take (default: what its GPU has)")
    parser.add_argument("--folder", type=Path, help="where checkpoints are written meanwhile (the temporary folder)")
    parser.add_argument("--json", type=Path, help="keep the figures of every job there")
    parser.add_argument(
        "--from", dest="made", nargs="+", type=Path, default=[], help="figures that were made elsewhere"
    )
    told = parser.parse_args(arguments)
    if not told.made:
        gpus, bytes_each = gpus_here()
        told.ranks = told.ranks or gpus or 4
        told.size = told.size or ("base" if gpus else "small")
        told.precision = told.precision or ("bf16" if gpus else "fp32")
        told.memory_gib = told.memory_gib or (bytes_each / GIB if gpus else None)
    return told


def gpus_here() -> tuple[int, int]:
    """How many, and the bytes of the smallest."""
    import torch  # noqa: PLC0415 - figures that were made elsewhere are shown without it

    count = torch.cuda.device_count()
    return count, min((torch.cuda.get_device_properties(each).total_memory for each in range(count)), default=0)


def measured(told: argparse.Namespace) -> list[dict[str, Any]]:
    """The figures of every job, rounds within turns."""
    found = []
    for number in range(told.rounds):
        for strategy in told.strategies:
            found.append(one(strategy, told))
            state = found[-1].get("failed") or f"{found[-1]['samples_per_s']:.1f} samples/s"
            print(f"round {number + 1} of {told.rounds}, {strategy}: {state}", file=sys.stderr, flush=True)
    if told.json:
        told.json.write_text(json.dumps(found, indent=2), encoding="utf-8")
    return found


def one(strategy: str, told: argparse.Namespace) -> dict[str, Any]:
    """The figures of a job, or why there are none."""
    with tempfile.TemporaryDirectory(dir=told.folder) as folder:
        file = Path(folder, "figures.json")
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={told.ranks}", str(TRAIN),
            "--strategy", strategy, "--size", told.size, "--steps", str(told.steps), "--precision", told.precision,
            "--batch-size", str(told.batch_size), "--save", f"{folder}/saved", "--measure", str(file),
        ]  # fmt: skip
        variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        try:
            done = subprocess.run(
                command, env=os.environ | variables, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=LIMIT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"strategy": strategy, "failed": f"not done in {LIMIT_S} s"}
        if done.returncode or not file.exists():
            return {"strategy": strategy, "failed": why(done.stderr)}
        return dict(json.loads(file.read_text(encoding="utf-8")))


def why(errors: str) -> str:
    """Why a job failed, in a few words: its last line that is an exception's, or a sentence it left with."""
    lines = [line.split("]:")[-1].strip() for line in errors.splitlines()]
    for line in lines:
        if "OutOfMemoryError" in line:
            return "out of memory"
        if line.endswith("as the hybrid form needs"):
            return line
    raised = [line for line in lines if line.split(":")[0].endswith("Error") and "ChildFailedError" not in line]
    return raised[-1][:80] if raised else "it failed and did not say why"


def report(runs: list[dict[str, Any]], memory_gib: float | None) -> list[str]:
    """Title, table, recommendation, and what has to be known besides."""
    rounds: dict[str, list[Row]] = defaultdict(list)
    for run in runs:
        failed = run.get("failed")
        rounds[run["strategy"]].append(Row(strategy=run["strategy"], failed=failed) if failed else row_of(run))
    rows = sorted((median(each) for each in rounds.values()), key=lambda row: STRATEGIES.index(row.strategy))
    described = next((run for run in runs if not run.get("failed")), None)
    if described is None:
        return [f"{row.strategy}: {row.failed}" for row in rows]
    choice = recommend(rows, int(memory_gib * GIB) if memory_gib else None)
    lines = [title(described, len(runs) // len(rows)), "", *table(rows), ""]
    lines += [f"recommended: {choice.strategy or 'none'}", *(f"  {sentence}" for sentence in choice.why)]
    lines.append(f"  last losses differ by {apart(rows):.0e} at most")
    if len(runs) == len(rows):
        lines.append("  of one round: how much of the differences is chance, only more rounds can tell")
    if described["device"] == "CPU":
        lines.append("  of CPUs with gloo: this says how it behaves, not which is faster on GPUs; run it there")
    if mixed := _mixed(runs):
        lines.append(f"  not to be compared: jobs differ in {', '.join(mixed)}")
    return lines


def title(run: dict[str, Any], rounds: int) -> str:
    """What was run."""
    return (
        f"{run['ranks']} ranks, {run['device']}, {run['parameters'] / 1e6:,.1f} M parameters, {run['precision']}, "
        f"{run['batch_size']} images a rank, torch {run['torch']}, {rounds} round{'s' * (rounds > 1)}"
    )


def _mixed(runs: list[dict[str, Any]]) -> list[str]:
    same = ("size", "ranks", "device", "precision", "batch_size", "frozen_vision", "torch")
    ran = [run for run in runs if not run.get("failed")]
    return [name for name in same if len({run[name] for run in ran}) > 1]


if __name__ == "__main__":
    main(sys.argv[1:])
