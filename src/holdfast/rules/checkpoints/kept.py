"""What is to be thought of a folder of checkpoints, and of a checkpoint that does not fit a model. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from holdfast.facts.checkpoints.kept import Checkpoints, Seen, Unfinished
from holdfast.findings import Fact, Finding, Level, Subject, Unknown, finding
from holdfast.report.text import duration, plural
from holdfast.rules.causes import by_name

#: A staged folder into which nothing was written for so long is nobody's any more.
QUIET_S = 600.0
_NAMED = 5


def judge(found: Checkpoints) -> tuple[Finding, ...]:
    """Findings about everything under one folder: what loading passes over, and why."""
    if found.unseen:
        return (
            finding(
                by_name("checkpoint-folder-unusable"), f"the checkpoints cannot be looked at: {found.unseen}",
                level=Level.UNKNOWN, subject=Subject(file=found.root),
            ),
        )  # fmt: skip
    return (*_checkpoints(found), *(_left(each) for each in found.unfinished if each.quiet_s > QUIET_S))


def _checkpoints(found: Checkpoints) -> Iterator[Finding]:
    whole = [each for each in found.seen if each.found is not None and not each.damages]
    for each in found.seen:
        claim = _claim(each, whole)
        if claim is not None:
            yield claim


def _claim(seen: Seen, whole: list[Seen]) -> Finding | None:
    before = max((each.step for each in whole if each.step < seen.step), default=None)
    instead = "no other is whole" if not whole else "a newer one is whole" if whole[0].step > seen.step else ""
    instead = instead or f"step {before} is the newest whole one"
    if seen.newer:
        return _about(seen, "checkpoint-of-newer-version", f"of another version: {seen.why}; {instead}")
    if not seen.has_manifest:
        return _about(seen, "checkpoint-unfinished", f"no checkpoint: {seen.why}; {instead}")
    if seen.found is None:
        return _about(seen, "checkpoint-corrupt", f"damaged: {seen.why}; {instead}")
    if seen.damages:
        kinds = Counter(each.kind for each in seen.damages)
        files = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        evidence = tuple(_fact(f"{seen.path}/{each.path}", f"{each.kind}: {each.why}") for each in seen.damages)
        number = plural(len(seen.damages), "file")
        return _about(seen, "checkpoint-corrupt", f"damaged ({number}: {files}); {instead}", evidence)
    if isinstance(seen.contents, Unknown):
        return _about(seen, "checkpoint-corrupt", f"not known to be whole: {seen.contents.why}", level=Level.UNKNOWN)
    return None


def _left(each: Unfinished) -> Finding:
    message = f"{each.path} was never finished; nothing was written into it for {duration(each.quiet_s)}"
    evidence = _fact(each.path, f"{each.size:,} bytes")
    return finding(
        by_name("checkpoint-unfinished"), message, level=Level.NOTE, subject=Subject(file=each.path),
        evidence=(evidence,), confidence=0.8,
    )  # fmt: skip


def another_model(folder: str, differences: Mapping[str, Mapping[str, str]]) -> Finding:
    """The finding about a checkpoint that does not fit: every name that differs is evidence, grouped by kind.

    ``differences`` has for each kind (``missing from the checkpoint``) the names and what is to be said of each.
    """
    parts = []
    for kind, names in differences.items():
        shown = ", ".join(list(names)[:_NAMED]) + (", …" if len(names) > _NAMED else "")
        parts.append(f"{len(names):,} {kind} ({shown})")
    evidence = tuple(
        _fact(folder, f"{kind}: {name}{detail}")
        for kind, names in differences.items()
        for name, detail in names.items()
    )
    message = f"{folder} is of another model: {'; '.join(parts)}"
    return finding(
        by_name("checkpoint-of-another-model"), message, subject=Subject(file=folder), evidence=evidence
    )  # fmt: skip


def _about(seen: Seen, name: str, what: str, evidence: tuple[Fact, ...] = (), *, level: Level = Level.ERROR) -> Finding:
    own = evidence or (_fact(seen.path, seen.why or what),)
    message = f"the checkpoint of step {seen.step} ({seen.path}) is {what}"
    return finding(by_name(name), message, level=level, subject=Subject(file=seen.path), evidence=own)


def _fact(origin: str, text: str) -> Fact:
    return Fact(text=text, origin=origin)
