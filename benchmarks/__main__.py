"""Run the named benchmarks, or all: ``python -m benchmarks [recorder_cost …]``."""

from __future__ import annotations

import importlib
import sys
import time

ALL = (
    "startup",
    "run_startup",
    "recorder_cost",
    "training_step",
    "judge_scale",
    "scale",
    "stragglers",
    "mesh_scale",
    "log_scan",
    "diagnose_sealed",
    "hang_to_verdict",
    "recovery",
    "dumps",
    "dump_tree",
    "attach",
    "bounded",
    "shortcuts",
    "hierarchy",
    "many_scalars",
    "evaluation",
    "health",
    "bench_overhead",
    "bring_up",
    "checkpoints",
    "conversion",
    "inspect_large",
    "loop",
    "lint_speed",
    "plan_peers",
    "plan_runs",
    "frameworks",
)


def main(names: list[str]) -> int:
    """Run the benchmarks; return 2 if a name is unknown."""
    unknown = [name for name in names if name not in ALL]
    if unknown:
        print(f"unknown benchmark {unknown[0]!r}; choose from {', '.join(ALL)}", file=sys.stderr)
        return 2
    for name in names or ALL:
        module = importlib.import_module(f"benchmarks.{name}")
        print(f"\n## {name}: {(module.__doc__ or '').splitlines()[0]}", flush=True)
        began = time.monotonic()
        module.main()
        print(f"({time.monotonic() - began:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
