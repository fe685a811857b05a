"""How far the plan is off published truth: ``python -m benchmarks.plan_truth TRUTH.json [-q]``.

A line for each figure, then the median error by kind, then why a row is more than 30 % off. Ends with 1 where one is
without a reason. ``-q`` leaves the lines out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks import plan_truth_memory, plan_truth_time
from benchmarks.plan_rows import medians, table, unexplained


def main(arguments: list[str]) -> int:
    """Print the table."""
    names = [each for each in arguments if each != "-q"]
    if len(names) != 1:
        sys.stderr.write((__doc__ or "").split(".")[0] + "\n")
        return 2
    truth = json.loads(Path(names[0]).read_text())
    found = [*plan_truth_memory.rows(truth), *plan_truth_time.rows(truth)]
    reasons = {**plan_truth_memory.REASONS, **plan_truth_time.REASONS}
    lines = [] if "-q" in arguments else [*table(found), ""]
    lines += medians(found)
    lines += [f"{each}: {why}" for each, why in reasons.items() if each in {row.id for row in found if row.far}]
    missing = unexplained(found, reasons)
    lines += [f"{row.id} is {row.error_percent:+.0f} % off without a reason" for row in missing]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
