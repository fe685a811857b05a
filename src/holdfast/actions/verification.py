"""``holdfast ckpt verify`` as a recipe: what is there, what was seen in it, what is to be thought of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from holdfast import manifest
from holdfast.errors import CheckpointUnreadable, CheckpointVersion, MissingFile
from holdfast.facts.checkpoints import formats, kept
from holdfast.facts.checkpoints.examining.survey import Examined, examine
from holdfast.facts.checkpoints.files.torch_pickle import Refused
from holdfast.findings import Finding, Level, Subject, Verdict, finding
from holdfast.rules.causes import by_name
from holdfast.rules.checkpoints import kept as kept_rules
from holdfast.rules.checkpoints import verify as rules
from holdfast.rules.checkpoints import whole

COULD_NOT_JUDGE = 3
Tell = Callable[[int, str], None]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. ``seen`` is None where nothing could be read."""

    findings: tuple[Finding, ...]
    verdict: Verdict
    seen: Examined | None
    elapsed_s: float

    @property
    def exit_status(self) -> int:
        """0 nothing wrong, 1 an error was found, 3 it could not be judged."""
        levels = {claim.level for claim in self.findings}
        return 1 if Level.ERROR in levels else COULD_NOT_JUDGE if Level.UNKNOWN in levels else 0


def verify(path: Path, *, quick: bool = False, tell: Tell | None = None) -> Report:
    """Look at the checkpoint at ``path``, or at all that holdfast keeps there.

    ``quick``: no tensor is read, no checksum compared. ``tell`` hears how many bytes were read of which file.

    Raises:
        MissingFile: there is nothing.
        CheckpointUnreadable: it is of no format that is known.
    """
    begun = time.monotonic()
    if not path.exists():
        raise MissingFile(path)
    findings = list(_of_kept(path, contents=not quick))
    damaged = {claim.subject.file for claim in findings}
    seen: Examined | None = None
    try:
        formats.detect(path)
    except CheckpointUnreadable:
        if not findings:
            raise
    else:
        found = _examined(path, tell, numbers=not quick)
        if isinstance(found, Finding):
            findings += [] if damaged else [found]
        else:
            seen = _with_hashes(found, path) if not quick and not findings else found
            findings += rules.judge(seen) if seen.contents.root not in damaged else ()
    verdict = rules.verdict(findings, seen)
    return Report(findings=tuple(findings), verdict=verdict, seen=seen, elapsed_s=round(time.monotonic() - begun, 3))


def _of_kept(path: Path, *, contents: bool) -> Iterator[Finding]:
    """Where holdfast wrote it: its own hashes, of every checkpoint that is there."""
    if manifest.step_of(path) is not None or (path / manifest.FILE).is_file():
        seen = kept.Checkpoints(str(path.parent), (kept.look_at(path, contents=contents),))
    elif path.is_dir():
        seen = kept.look(path, contents=contents)
    else:
        return
    yield from (claim for claim in kept_rules.judge(seen) if contents or claim.level is not Level.UNKNOWN)


def _with_hashes(seen: Examined, path: Path) -> Examined:
    """Where holdfast's own hashes were held against every file, and nothing was found: none of them is bare."""
    try:
        files = manifest.read(Path(seen.contents.root)).files
    except CheckpointUnreadable:
        return seen
    if path != Path(seen.contents.root) and path != Path(seen.contents.root).parent:
        return seen
    return msgspec.structs.replace(seen, bare=(), sums=seen.sums + len(files))


def _examined(path: Path, tell: Tell | None, *, numbers: bool) -> Examined | Finding:
    """What was seen; or, where nothing of it can be read, the finding that says so."""
    try:
        return examine(formats.read(path), numbers=numbers, tell=tell)
    except CheckpointVersion as error:
        cause = by_name("checkpoint-of-newer-version")
        return finding(cause, f"{path} cannot be read: {error.why}", subject=Subject(file=str(path)))
    except CheckpointUnreadable as error:
        if isinstance(error.__cause__, Refused):
            return whole.refused(error.subject, "", error.__cause__.names)
        return whole.unreadable(error.subject, error.why)
