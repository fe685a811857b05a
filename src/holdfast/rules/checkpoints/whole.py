"""Is every file of a checkpoint there and as it was written, and does each tensor have all of its parts?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.facts.checkpoints.contents import Gap
from holdfast.facts.checkpoints.examining.survey import Examined, Key
from holdfast.findings import Cause, Fact, Finding, Level, Subject, finding
from holdfast.report.ranksets import say_ranks
from holdfast.report.text import plural
from holdfast.rules.causes import by_name

_NAMED = 3
_HAPPENED = {"missing": "missing", "truncated": "cut short", "unreadable": "unreadable"}


def judge(seen: Examined) -> Iterator[Finding]:
    """What is missing, cut short, changed or not made up."""
    gaps = seen.contents.gaps
    for kind, what in _HAPPENED.items():
        if found := [gap for gap in gaps if gap.kind == kind]:
            yield _gaps(seen, found, what)
    if mixed := [gap for gap in gaps if gap.kind == "mixed"]:
        yield _mixed(seen, mixed)
    yield from (refused(seen.contents.root, gap.file, gap.names, gap.why) for gap in gaps if gap.kind == "refused")
    yield from (_unjudged(seen, gap) for gap in gaps if gap.kind not in {*_HAPPENED, "mixed", "refused"})
    yield from _broken(seen, {gap.file for gap in gaps})
    yield from _changed(seen)
    yield from _incomplete(seen)
    if not seen.tensors and not gaps:
        message = f"{seen.contents.root} holds no tensor, so that there is nothing to judge"
        cause, subject = by_name("checkpoint-corrupt"), Subject(file=seen.contents.root)
        yield finding(cause, message, level=Level.UNKNOWN, subject=subject)


def refused(root: str, file: str, names: Sequence[str], why: str = "") -> Finding:
    """A pickle in it would run code when a framework loads it."""
    named = ", ".join(names[:_NAMED]) or why
    where = f"{root}/{file}" if file else root
    facts = tuple(Fact(text=f"the pickle names {name}", origin=where) for name in names)
    message = f"{where} would run {named} when it is loaded; nothing of it was run here"
    return finding(by_name("checkpoint-runs-code"), message, subject=Subject(file=where), evidence=facts)


def unreadable(path: str, why: str) -> Finding:
    """It is of a format that is known, and nothing of it can be read."""
    message = f"{path} cannot be read: {why}"
    evidence = (Fact(text=why, origin=path),)
    return finding(by_name("checkpoint-corrupt"), message, subject=Subject(file=path), evidence=evidence)


def tensor_name(key: Key) -> str:
    """``exp_avg of w``; a weight by its name alone."""
    return key[1] if key[0] == "model" else f"{'copy' if key[0] == 'half' else key[0]} of {key[1]}"


def listed(names: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _gaps(seen: Examined, gaps: Sequence[Gap], what: str) -> Finding:
    """One finding for all files that are missing, or cut short, with the ranks that wrote them."""
    latest = seen.latest
    message = f"{plural(len(gaps), 'file')} of {seen.contents.root} {'is' if len(gaps) == 1 else 'are'} {what}: "
    message += f"{listed([gap.file for gap in gaps])}{_ranks(gaps)}"
    if latest is not None:
        message += f"; `{latest.file}` names it all the same"
        message += f", while {latest.whole} is whole" if latest.whole else ""
    cause = "checkpoint-half-written" if latest is not None and what == "missing" else "checkpoint-corrupt"
    return _about(by_name(cause), seen, message, _facts(seen, gaps), gaps)


def _mixed(seen: Examined, gaps: Sequence[Gap]) -> Finding:
    message = f"{seen.contents.root} holds parts of different saves: {gaps[0].why}{_ranks(gaps)}"
    return _about(by_name("checkpoint-half-written"), seen, message, _facts(seen, gaps), gaps)


def _unjudged(seen: Examined, gap: Gap) -> Finding:
    """Its files are whole, and it does not say what is in them."""
    message = f"{_path(seen, gap.file)} cannot be judged: {gap.why}"
    subject = Subject(file=seen.contents.root, rank=gap.rank)
    return finding(by_name("checkpoint-tensor-incomplete"), message, level=Level.UNKNOWN, subject=subject)


def _broken(seen: Examined, told: set[str]) -> Iterator[Finding]:
    broken = {file: why for file, why in seen.broken.items() if file not in told}
    if broken:
        files = list(broken)
        message = f"{plural(len(files), 'file')} of {seen.contents.root} cannot be read: {listed(files)}: "
        facts = tuple(Fact(text=why, origin=_path(seen, file)) for file, why in broken.items())
        yield _about(by_name("checkpoint-corrupt"), seen, message + broken[files[0]], facts, ())


def _changed(seen: Examined) -> Iterator[Finding]:
    if seen.wrong:
        keys = list(dict.fromkeys(tensor_name(key) for each in seen.wrong for key in each.tensors))
        files = list(dict.fromkeys(each.file for each in seen.wrong))
        message = f"bytes changed after they were written in {listed([_path(seen, file) for file in files])}"
        message += f": {listed(keys)}" if keys else f": {listed([each.record for each in seen.wrong])}"
        facts = tuple(
            Fact(text=f"the CRC32 of {each.record} is not the one that was written", origin=_path(seen, each.file))
            for each in seen.wrong
        )
        yield _about(by_name("checkpoint-corrupt"), seen, message, facts, ())


def _incomplete(seen: Examined) -> Iterator[Finding]:
    bad = {key: found for key, found in seen.covers.items() if found.missing or found.outside}
    if bad:
        facts = tuple(
            Fact(
                text=f"{tensor_name(key)}: {found.missing:,} elements in no file, "
                f"{plural(len(found.outside), 'shard')} beyond its edges",
                origin=seen.contents.root,
            )
            for key, found in bad.items()
        )
        names = [tensor_name(key) for key in bad]
        message = f"the shards of {plural(len(bad), 'tensor')} do not add up: {listed(names)}"
        yield _about(by_name("checkpoint-tensor-incomplete"), seen, message, facts, ())
    if unjudged := [tensor_name(key) for key, found in seen.covers.items() if not found.judged]:
        message = f"whether the shards of {listed(unjudged)} add up was not judged"
        cause = by_name("checkpoint-tensor-incomplete")
        yield finding(cause, message, level=Level.UNKNOWN, subject=Subject(file=seen.contents.root))


def _about(
    cause: Cause, seen: Examined, message: str, facts: tuple[Fact, ...], gaps: Sequence[Gap]
) -> Finding:  # fmt: skip
    rank = gaps[0].rank if len(gaps) == 1 else None
    return finding(cause, message, subject=Subject(file=seen.contents.root, rank=rank), evidence=facts)


def _facts(seen: Examined, gaps: Sequence[Gap]) -> tuple[Fact, ...]:
    return tuple(Fact(text=f"{gap.kind}: {gap.why}", origin=_path(seen, gap.file), rank=gap.rank) for gap in gaps)


def _ranks(gaps: Sequence[Gap]) -> str:
    ranks = sorted({gap.rank for gap in gaps if gap.rank is not None})
    return f" (written by {say_ranks(ranks)})" if ranks else ""


def _path(seen: Examined, file: str) -> str:
    return f"{seen.contents.root}/{file}" if file else seen.contents.root
