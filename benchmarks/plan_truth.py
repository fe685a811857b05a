"""How far the plan is off published truth: ``python -m benchmarks.plan_truth TRUTH.json [-q]``.

A line for each figure, then the median error by kind, then why a row is more than 30 % off. Ends with 1 where one is
without a reason. ``-q`` leaves the lines out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks import plan_truth_memory, plan_truth_time
from benchmarks.plan_rows import report


def main(arguments: list[str]) -> int:
    """Print the table."""
    names = [each for each in arguments if each != "-q"]
    if len(names) != 1:
        sys.stderr.write((__doc__ or "").split(".")[0] + "\n")
        return 2
    truth = json.loads(Path(names[0]).read_text())
    found = [*plan_truth_memory.rows(truth), *plan_truth_time.rows(truth)]
    reasons = {**plan_truth_memory.REASONS, **plan_truth_time.REASONS}
    said, fine = report(found, reasons, lines="-q" not in arguments)
    sys.stdout.write(said)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
