"""Existing checkpoints of the checkpoint folder, verified by manifests and file sizes."""

from __future__ import annotations

from pathlib import Path

from holdfast.core.findings import Fact
from holdfast.host import checkpoint_folder
from holdfast.host.checkpoint_folder import CheckpointFolder
from holdfast.host.checks import CheckContext, CheckResult, check_fact


class CheckpointsResult(CheckResult, frozen=True, kw_only=True):
    """The inspected folder; None if none was named or it does not exist yet."""

    folder: CheckpointFolder | None = None

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        if self.folder is None:
            return (check_fact("checkpoints", self.absent, "--checkpoints"),)
        inspected = self.folder.checkpoints
        intact = [entry for entry in inspected if entry.found is not None and not entry.damages]
        newest = (
            f"newest complete one by file sizes: step {intact[0].step}"
            if intact
            else "none complete"
        )
        text = f"{len(inspected)}, {newest}" if inspected else "none"
        return (check_fact("checkpoints", text, self.folder.root),)


def inspect(context: CheckContext) -> CheckpointsResult:
    """Verify the folder's checkpoints against their manifests."""
    if context.checkpoints is None:
        return CheckpointsResult(absent="no checkpoint folder named (--checkpoints)")
    folder = (
        context.path(context.checkpoints)
        if context.checkpoints.startswith("/")
        else Path(context.checkpoints)
    )
    if not folder.exists():
        return CheckpointsResult(absent=f"{folder} does not exist yet")
    return CheckpointsResult(folder=checkpoint_folder.inspect_folder(folder, contents=False))
