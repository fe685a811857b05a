"""Compare the plan with published figures: ``python -m benchmarks.plan_truth TRUTH.json [-q]``.

Prints a line per figure, the median error by kind, the reasons of rows that are more than 30 % off,
and how many pairs of step times are predicted in the right order. Exit status 1: a row has no
reason. ``-q`` omits the rows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks import plan_truth_memory, plan_truth_time
from benchmarks.plan_rows import report


def main(arguments: list[str]) -> int:
    """Print the table."""
    names = [argument for argument in arguments if argument != "-q"]
    if len(names) != 1:
        sys.stderr.write((__doc__ or "").split(".")[0] + "\n")
        return 2
    truth = json.loads(Path(names[0]).read_text())
    time_rows = list(plan_truth_time.rows(truth))
    all_rows = [*plan_truth_memory.rows(truth), *time_rows]
    reasons = {**plan_truth_memory.REASONS, **plan_truth_time.REASONS}
    text, complete = report(all_rows, reasons, lines="-q" not in arguments)
    right, pairs = plan_truth_time.count_ordered_pairs(time_rows)
    sys.stdout.write(
        f"{text}in the right order: {right} of {pairs} pairs of one model and source\n"
    )
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
