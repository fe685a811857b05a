"""What differs between two checkpoints, gathered by patterns of names: layers of one kind are one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from holdfast.facts.checkpoints.examining.comparing import Difference
from holdfast.facts.checkpoints.examining.differing import Compared, Key, Pair
from holdfast.findings import Fact, Finding, Level, Subject, Unknown, Verdict, finding
from holdfast.report.text import plural
from holdfast.rules.causes import by_name
from holdfast.rules.checkpoints.whole import tensor_name

QUESTION = "Do these checkpoints hold the same?"
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """What differs in tensors whose ``names`` fit one pattern: ``*`` stands for a number in them.

    ``kind``: missing (in the second), extra, shape, dtype, values, unread. ``max_abs`` and ``relative`` are the largest
    of theirs, ``differ`` of ``elements`` numbers are not the same.
    """

    kind: str
    pattern: str
    names: tuple[str, ...]
    text: str
    differ: int = 0
    elements: int = 0
    max_abs: float = 0.0
    relative: float = 0.0


def lines(found: Compared) -> tuple[Line, ...]:
    """Everything that differs, what is missing first."""
    return (
        *_named("missing", f"in {found.first} alone", found.missing),
        *_named("extra", f"in {found.second} alone", found.extra),
        *_of_pairs("shape", (pair for pair in found.pairs if pair.shapes[0] != pair.shapes[1])),
        *_of_pairs("dtype", (pair for pair in found.pairs if pair.dtypes[0] != pair.dtypes[1] and not pair.alike)),
        *_of_pairs("values", (pair for pair in found.pairs if _differ(pair))),
        *_of_pairs("unread", (pair for pair in found.pairs if isinstance(pair.difference, Unknown))),
    )


def judge(found: Compared) -> tuple[Finding, ...]:
    """One finding that says what differs, or none."""
    unread = [pair for pair in found.pairs if isinstance(pair.difference, Unknown)]
    if found.alike and found.pairs and not found.gaps:
        return ()
    told = [line for line in lines(found) if line.kind != "unread"]
    facts = [Fact(text=f"{line.pattern}: {line.kind}: {line.text}", origin=found.second) for line in told]
    facts += [
        Fact(text=f"{path}: {one} and {other}", origin=found.second) for path, (one, other) in found.values.items()
    ]
    facts += [Fact(text=gap, origin=found.second) for gap in found.gaps]
    cause = by_name("checkpoints-not-alike")
    level = Level.ERROR if told or found.values else Level.UNKNOWN
    message = f"{found.first} and {found.second} are not alike: {_summary(found, unread)}"
    if found.alike:
        why = "no tensor is in both" if not found.gaps else found.gaps[0]
        message = f"whether {found.first} and {found.second} are alike cannot be said: {why}"
    return (finding(cause, message, level=level, subject=Subject(file=found.second), evidence=tuple(facts)),)


def verdict(found: Compared, findings: tuple[Finding, ...]) -> Verdict:
    """The answer."""
    return Verdict(question=QUESTION, root=findings[0] if findings else None, unseen=(*found.apart, *found.gaps))


def _differ(pair: Pair) -> bool:
    return (
        isinstance(pair.difference, Difference) and pair.difference.differ > 0 and not pair.rounded and not pair.alike
    )


def _summary(found: Compared, unread: list[Pair]) -> str:
    differ = [pair for pair in found.pairs if _differ(pair)]
    counts = {
        "missing in the second": len(found.missing),
        "in the second alone": len(found.extra),
        "of another shape": sum(pair.shapes[0] != pair.shapes[1] for pair in found.pairs),
        "of another dtype": sum(pair.dtypes[0] != pair.dtypes[1] and not pair.alike for pair in found.pairs),
        "with other numbers": len(differ),
        "that cannot be read": len(unread),
    }
    parts = [f"{plural(number, 'tensor')} {what}" for what, number in counts.items() if number]
    parts += [f"{plural(len(found.values), 'other value')}"] if found.values else []
    largest = max((pair.difference.max_abs for pair in differ if isinstance(pair.difference, Difference)), default=0.0)
    return ", ".join(parts) + (f"; by {largest:.3g} at most" if differ else "")


def _named(kind: str, text: str, keys: Iterable[Key]) -> Iterator[Line]:
    grouped: dict[str, list[Key]] = {}
    for key in keys:
        grouped.setdefault(_pattern(key), []).append(key)
    for pattern, group in grouped.items():
        yield Line(
            kind=kind,
            pattern=pattern if len(group) > 1 else tensor_name(group[0]),
            text=text,
            names=tuple(map(tensor_name, group)),
        )


def _of_pairs(kind: str, pairs: Iterable[Pair]) -> Iterator[Line]:
    grouped: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        own = "" if kind == "values" else _said(kind, [pair])
        grouped.setdefault((_pattern(pair.key), own), []).append(pair)
    for (pattern, _), group in grouped.items():
        known = (
            [pair.difference for pair in group if isinstance(pair.difference, Difference)] if kind == "values" else []
        )
        yield Line(
            kind=kind, pattern=pattern if len(group) > 1 else tensor_name(group[0].key), text=_said(kind, group),
            names=tuple(tensor_name(pair.key) for pair in group),
            differ=sum(each.differ for each in known), elements=sum(each.elements for each in known),
            max_abs=max((each.max_abs for each in known), default=0.0),
            relative=max((each.relative for each in known), default=0.0),
        )  # fmt: skip


def _said(kind: str, group: list[Pair]) -> str:
    pair = group[0]
    if kind == "shape":
        return f"{list(pair.shapes[0])} and {list(pair.shapes[1])}"
    if kind == "dtype":
        return f"{pair.dtypes[0]} and {pair.dtypes[1]}" + (", the same but for rounding" if pair.rounded else "")
    if isinstance(pair.difference, Unknown):
        return pair.difference.why
    known = [each.difference for each in group if isinstance(each.difference, Difference)]
    differ, elements = sum(each.differ for each in known), sum(each.elements for each in known)
    largest, relative = max(each.max_abs for each in known), max(each.relative for each in known)
    return f"{differ:,} of {elements:,} numbers, by {largest:.3g} at most (relative {relative:.3g})"


def _pattern(key: Key) -> str:
    return tensor_name((key[0], _NUMBER.sub("*", key[1])))
