"""Pure rules over a checkpoint folder and over a checkpoint of another model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from holdfast.causes.checkpoint.checkpoint_corrupt import CHECKPOINT_CORRUPT
from holdfast.causes.checkpoint.checkpoint_folder_unusable import CHECKPOINT_FOLDER_UNUSABLE
from holdfast.causes.checkpoint.checkpoint_of_newer_version import CHECKPOINT_OF_NEWER_VERSION
from holdfast.causes.checkpoint.checkpoint_unfinished import CHECKPOINT_UNFINISHED
from holdfast.core.findings import Cause, Fact, Finding, Level, Subject, Unknown, make_finding
from holdfast.core.text import format_duration, pluralize
from holdfast.host.checkpoint_folder import CheckpointFolder, InspectedCheckpoint, UnfinishedFolder

#: A staged folder without a write for this long is abandoned.
QUIET_S = 600.0


def judge_checkpoint_folder(folder: CheckpointFolder) -> tuple[Finding, ...]:
    """Return the findings about one folder: what loading skips, and why."""
    if folder.unobserved:
        return (
            make_finding(
                CHECKPOINT_FOLDER_UNUSABLE,
                f"the checkpoints cannot be inspected: {folder.unobserved}",
                level=Level.UNKNOWN,
                subject=Subject(file=folder.root),
            ),
        )
    abandoned = (leftover for leftover in folder.unfinished if leftover.quiet_s > QUIET_S)
    return (*_judge_checkpoints(folder), *map(_unfinished_finding, abandoned))


def _judge_checkpoints(folder: CheckpointFolder) -> Iterator[Finding]:
    intact = [
        checkpoint
        for checkpoint in folder.checkpoints
        if checkpoint.found is not None and not checkpoint.damages
    ]
    for checkpoint in folder.checkpoints:
        finding = _judge_checkpoint(checkpoint, intact)
        if finding is not None:
            yield finding


def _judge_checkpoint(
    checkpoint: InspectedCheckpoint, intact: list[InspectedCheckpoint]
) -> Finding | None:
    earlier = [other.step for other in intact if other.step < checkpoint.step]
    if not intact:
        fallback = "no other one is complete"
    elif intact[0].step > checkpoint.step:
        fallback = "a newer one is complete"
    else:
        fallback = f"step {max(earlier, default=None)} is the newest complete one"
    if checkpoint.newer:
        state = f"of another version: {checkpoint.why}; {fallback}"
        return _checkpoint_finding(checkpoint, CHECKPOINT_OF_NEWER_VERSION, state)
    if not checkpoint.has_manifest:
        state = f"unfinished: {checkpoint.why}; {fallback}"
        return _checkpoint_finding(checkpoint, CHECKPOINT_UNFINISHED, state)
    if checkpoint.found is None:
        state = f"damaged: {checkpoint.why}; {fallback}"
        return _checkpoint_finding(checkpoint, CHECKPOINT_CORRUPT, state)
    if checkpoint.damages:
        kinds = Counter(damage.kind for damage in checkpoint.damages)
        counts = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        evidence = tuple(
            _fact(f"{checkpoint.path}/{damage.path}", f"{damage.kind}: {damage.why}")
            for damage in checkpoint.damages
        )
        files = pluralize(len(checkpoint.damages), "file")
        state = f"damaged ({files}: {counts}); {fallback}"
        return _checkpoint_finding(checkpoint, CHECKPOINT_CORRUPT, state, evidence)
    if isinstance(checkpoint.contents, Unknown):
        state = f"not fully verified: {checkpoint.contents.why}"
        return _checkpoint_finding(checkpoint, CHECKPOINT_CORRUPT, state, level=Level.UNKNOWN)
    return None


def _unfinished_finding(leftover: UnfinishedFolder) -> Finding:
    evidence = _fact(leftover.path, f"{leftover.size:,} bytes")
    return make_finding(
        CHECKPOINT_UNFINISHED,
        f"{leftover.path} was never finished; the last write was "
        f"{format_duration(leftover.quiet_s)} ago",
        level=Level.NOTE,
        subject=Subject(file=leftover.path),
        evidence=(evidence,),
        confidence=0.8,
    )


def _checkpoint_finding(
    checkpoint: InspectedCheckpoint,
    cause: Cause,
    state: str,
    evidence: tuple[Fact, ...] = (),
    *,
    level: Level = Level.ERROR,
) -> Finding:
    path = checkpoint.path
    return make_finding(
        cause,
        f"the checkpoint of step {checkpoint.step} ({path}) is {state}",
        level=level,
        subject=Subject(file=path),
        evidence=evidence or (_fact(path, checkpoint.why or state),),
    )


def _fact(origin: str, text: str) -> Fact:
    return Fact(text=text, origin=origin)
