"""Remedies that several causes share.

Commands contain placeholders in capitals, such as SCRIPT (the training script) and HOST.
"""

from __future__ import annotations

from holdfast.core.findings import Remedy, Safety

RESTART = Remedy(
    text="Restart all ranks from the last checkpoint; `holdfast run` does so up to --max-restarts "
    "times.",
    command="holdfast run --on-hang restart --max-restarts 3 SCRIPT",
    safety=Safety.DISRUPTIVE,
)
WATCH = Remedy(
    text="Run the job under the watcher, which names the rank and its line while it hangs.",
    command="holdfast run --on-hang report SCRIPT",
    safety=Safety.DISRUPTIVE,
)
DRAIN = Remedy(
    text="Take the host out of the pool before the next start; otherwise the scheduler may assign "
    "it again.",
    command="scontrol update nodename=HOST state=drain reason='failed in training'",
    safety=Safety.BY_HAND,
)
COMPARE_SEQUENCES = Remedy(
    text="Let torch compare the calls before each collective, to find the line (a collective then "
    "costs about four times as much CPU, and the checks can hide a race).",
    command="export TORCH_DISTRIBUTED_DEBUG=DETAIL",
    safety=Safety.DISRUPTIVE,
)
BEFORE = Remedy(
    text="Go back to the newest checkpoint in which `holdfast ckpt verify` finds no error.",
    command="for one in CHECKPOINTS/*; do holdfast ckpt verify $one; done",
    safety=Safety.DISRUPTIVE,
)
SAME_LINE = Remedy(
    text="Compare the two calls that the verdict quotes: they have the same number in the group's "
    "sequence and should be the same call."
)
