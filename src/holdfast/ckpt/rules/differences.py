"""Groups the differences between two checkpoints by name pattern, one line per layer kind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from holdfast.causes.checkpoint.checkpoints_not_alike import CHECKPOINTS_NOT_ALIKE
from holdfast.ckpt.rules.completeness import describe_tensor
from holdfast.ckpt.verify.differences import ComparisonResult, Key, TensorPair
from holdfast.ckpt.verify.tensor_comparison import TensorDifference
from holdfast.core.findings import Fact, Finding, Level, Subject, Unknown, Verdict, make_finding
from holdfast.core.text import pluralize

QUESTION = "Do these checkpoints contain the same data?"
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


class DifferenceLine(msgspec.Struct, frozen=True, kw_only=True):
    """The differences of tensors whose ``names`` match a pattern (``*`` is a number).

    ``kind``: missing (in the second), extra, shape, dtype, values, unread. ``max_abs`` and
    ``relative`` are maxima over the tensors; ``differ`` of ``elements`` values are different.
    """

    kind: str
    pattern: str
    names: tuple[str, ...]
    text: str
    differ: int = 0
    elements: int = 0
    max_abs: float = 0.0
    relative: float = 0.0


def difference_lines(result: ComparisonResult) -> tuple[DifferenceLine, ...]:
    """Return all differences, missing tensors first."""
    return (
        *_missing_lines("missing", f"only in {result.first}", result.missing),
        *_missing_lines("extra", f"only in {result.second}", result.extra),
        *_pair_lines("shape", (pair for pair in result.pairs if pair.shapes[0] != pair.shapes[1])),
        *_pair_lines(
            "dtype",
            (pair for pair in result.pairs if pair.dtypes[0] != pair.dtypes[1] and not pair.alike),
        ),
        *_pair_lines("values", (pair for pair in result.pairs if _values_differ(pair))),
        *_pair_lines(
            "unread", (pair for pair in result.pairs if isinstance(pair.difference, Unknown))
        ),
    )


def judge_differences(result: ComparisonResult) -> tuple[Finding, ...]:
    """Return one finding that summarizes the differences; empty if there are none."""
    unread = [pair for pair in result.pairs if isinstance(pair.difference, Unknown)]
    if result.alike and result.pairs and not result.problems:
        return ()
    changes = [line for line in difference_lines(result) if line.kind != "unread"]
    facts = [
        Fact(text=f"{line.pattern}: {line.kind}: {line.text}", origin=result.second)
        for line in changes
    ]
    facts += [
        Fact(text=f"{path}: {one} and {other}", origin=result.second)
        for path, (one, other) in result.values.items()
    ]
    facts += [Fact(text=problem, origin=result.second) for problem in result.problems]
    cause = CHECKPOINTS_NOT_ALIKE
    level = Level.ERROR if changes or result.values else Level.UNKNOWN
    message = f"{result.first} and {result.second} differ: {_summary(result, unread)}"
    if result.alike:
        why = "they have no tensor in common" if not result.problems else result.problems[0]
        message = f"cannot compare {result.first} and {result.second}: {why}"
    return (
        make_finding(
            cause, message, level=level, subject=Subject(file=result.second), evidence=tuple(facts)
        ),
    )


def build_verdict(result: ComparisonResult, findings: tuple[Finding, ...]) -> Verdict:
    """Return the verdict."""
    return Verdict(
        question=QUESTION,
        root=findings[0] if findings else None,
        unseen=(*result.apart, *result.problems),
    )


def _values_differ(pair: TensorPair) -> bool:
    return (
        isinstance(pair.difference, TensorDifference)
        and pair.difference.differ > 0
        and not pair.rounded
        and not pair.alike
    )


def _summary(result: ComparisonResult, unread: list[TensorPair]) -> str:
    differ = [pair for pair in result.pairs if _values_differ(pair)]
    counts = {
        "missing in the second": len(result.missing),
        "only in the second": len(result.extra),
        "with a different shape": sum(pair.shapes[0] != pair.shapes[1] for pair in result.pairs),
        "with a different dtype": sum(
            pair.dtypes[0] != pair.dtypes[1] and not pair.alike for pair in result.pairs
        ),
        "with different values": len(differ),
        "that could not be read": len(unread),
    }
    parts = [f"{pluralize(number, 'tensor')} {what}" for what, number in counts.items() if number]
    parts += [f"{pluralize(len(result.values), 'other value')}"] if result.values else []
    largest = max(
        (
            pair.difference.max_abs
            for pair in differ
            if isinstance(pair.difference, TensorDifference)
        ),
        default=0.0,
    )
    return ", ".join(parts) + (f"; largest difference {largest:.3g}" if differ else "")


def _missing_lines(kind: str, text: str, keys: Iterable[Key]) -> Iterator[DifferenceLine]:
    grouped: dict[str, list[Key]] = {}
    for key in keys:
        grouped.setdefault(_name_pattern(key), []).append(key)
    for pattern, group in grouped.items():
        yield DifferenceLine(
            kind=kind,
            pattern=pattern if len(group) > 1 else describe_tensor(group[0]),
            text=text,
            names=tuple(map(describe_tensor, group)),
        )


def _pair_lines(kind: str, pairs: Iterable[TensorPair]) -> Iterator[DifferenceLine]:
    grouped: dict[tuple[str, str], list[TensorPair]] = {}
    for pair in pairs:
        text = "" if kind == "values" else _describe_pairs(kind, [pair])
        grouped.setdefault((_name_pattern(pair.key), text), []).append(pair)
    for (pattern, _), group in grouped.items():
        differences = (
            [pair.difference for pair in group if isinstance(pair.difference, TensorDifference)]
            if kind == "values"
            else []
        )
        yield DifferenceLine(
            kind=kind,
            pattern=pattern if len(group) > 1 else describe_tensor(group[0].key),
            text=_describe_pairs(kind, group),
            names=tuple(describe_tensor(pair.key) for pair in group),
            differ=sum(difference.differ for difference in differences),
            elements=sum(difference.elements for difference in differences),
            max_abs=max((difference.max_abs for difference in differences), default=0.0),
            relative=max((difference.relative for difference in differences), default=0.0),
        )


def _describe_pairs(kind: str, group: list[TensorPair]) -> str:
    pair = group[0]
    if kind == "shape":
        return f"{list(pair.shapes[0])} vs {list(pair.shapes[1])}"
    if kind == "dtype":
        return f"{pair.dtypes[0]} vs {pair.dtypes[1]}" + (
            ", equal up to rounding" if pair.rounded else ""
        )
    if isinstance(pair.difference, Unknown):
        return pair.difference.why
    differences = [
        difference.difference
        for difference in group
        if isinstance(difference.difference, TensorDifference)
    ]
    differ, elements = (
        sum(difference.differ for difference in differences),
        sum(difference.elements for difference in differences),
    )
    largest, relative = (
        max(difference.max_abs for difference in differences),
        max(difference.relative for difference in differences),
    )
    return (
        f"{differ:,} of {elements:,} values differ, by at most {largest:.3g} "
        f"(relative {relative:.3g})"
    )


def _name_pattern(key: Key) -> str:
    return describe_tensor((key[0], _NUMBER.sub("*", key[1])))
