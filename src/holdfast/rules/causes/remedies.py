"""Remedies that several causes share, worded once."""

from __future__ import annotations

from holdfast.findings import Remedy, Safety

RESTART = Remedy(
    text="Restart all ranks from the last checkpoint; `holdfast run` does it by itself while --max-restarts allows.",
    command="holdfast run --on-hang restart --max-restarts 3 train.py",
    safety=Safety.DISRUPTIVE,
)
WATCH = Remedy(
    text="Run the job under the watcher, so that the rank and its line are named while they can still be seen.",
    command="holdfast run --on-hang report train.py",
    safety=Safety.DISRUPTIVE,
)
DRAIN = Remedy(
    text="Take the host out of the pool before the next start, or the scheduler hands the same one back.",
    command="scontrol update nodename=HOST state=drain reason='failed in training'",
    safety=Safety.BY_HAND,
)
COMPARE_SEQUENCES = Remedy(
    text="Let torch compare the calls before each collective, to find the line (a collective then costs about four "
    "times as much CPU, and the checks can hide a race).",
    command="export TORCH_DISTRIBUTED_DEBUG=DETAIL",
    safety=Safety.DISRUPTIVE,
)
