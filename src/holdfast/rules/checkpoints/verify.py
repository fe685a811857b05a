"""All that was seen of a checkpoint as one verdict: what is wrong with it first, and what only follows from that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from holdfast.facts.checkpoints.examining.survey import Examined
from holdfast.findings import Finding, Level, RuledOut, Unknown, Verdict
from holdfast.report.text import plural
from holdfast.rules.checkpoints import moment, numbers, whole

QUESTION = "Is this checkpoint whole, and of one save?"
#: Of several errors the one that stands first here is the root.
_ORDER = (
    "checkpoint-runs-code", "checkpoint-of-newer-version", "checkpoint-half-written", "checkpoint-corrupt",
    "checkpoint-tensor-incomplete", "checkpoint-copies-differ", "checkpoint-numbers-not-finite",
    "checkpoint-weights-all-zero", "checkpoint-unfinished",
)  # fmt: skip
#: What may be no more than a consequence of files that are missing, changed, or of another save.
_FOLLOWS = {
    "checkpoint-tensor-incomplete": {"checkpoint-corrupt", "checkpoint-half-written"},
    "checkpoint-copies-differ": {"checkpoint-corrupt", "checkpoint-half-written"},
    "checkpoint-numbers-not-finite": {"checkpoint-corrupt"},
    "checkpoint-weights-all-zero": {"checkpoint-corrupt"},
    "checkpoint-corrupt": {"checkpoint-half-written"},
}
#: What nothing was found of, and why that can be said; only where every number was read.
_LOOKED_FOR = {
    "checkpoint-corrupt": "every file is there and long enough; {sums} match",
    "checkpoint-tensor-incomplete": "the shards of {tensors} add up to their shapes",
    "checkpoint-numbers-not-finite": "all numbers of {tensors} were looked at",
}


def judge(seen: Examined) -> tuple[Finding, ...]:
    """Every finding about one checkpoint, the gravest first."""
    found = [*whole.judge(seen), *moment.judge(seen), *numbers.judge(seen)]
    return tuple(sorted(found, key=_place))


def verdict(findings: Sequence[Finding], seen: Examined | None = None) -> Verdict:
    """One answer; ``seen`` has what was looked at, where it could be."""
    errors = [claim for claim in sorted(findings, key=_place) if claim.level is Level.ERROR]
    root = errors[0] if errors else None
    follows = [claim for claim in errors[1:] if root is not None and root.cause in _FOLLOWS.get(claim.cause, ())]
    suspects = [claim for claim in findings if claim is not root and claim not in follows]
    return Verdict(
        question=QUESTION,
        root=root,
        consequences=tuple(replace(claim, level=Level.NOTE) for claim in follows),
        suspects=tuple(claim for claim in suspects if claim.level is not Level.UNKNOWN),
        ruled_out=tuple(_ruled_out(findings, seen)) if seen is not None else (),
        unseen=tuple([claim.message for claim in findings if claim.level is Level.UNKNOWN] + unseen(seen)),
    )


def unseen(seen: Examined | None) -> list[str]:
    """What could not be looked at, a clause each."""
    if seen is None:
        return []
    if isinstance(seen.counts, Unknown):
        return [f"the numbers in the tensors, and checksums: {seen.counts.why}"]
    found = []
    if seen.bare:
        format_ = seen.contents.format
        found.append(f"whether bytes changed in {plural(len(seen.bare), 'file')} without checksums ({format_})")
    if unknown := [each for each in seen.copies if isinstance(each.difference, Unknown)]:
        found.append(f"whether {plural(len(unknown), 'pair')} of copies are the same")
    return found


def _ruled_out(findings: Sequence[Finding], seen: Examined) -> Iterator[RuledOut]:
    claimed = {claim.cause for claim in findings}
    for cause, why in _LOOKED_FOR.items():
        if cause not in claimed and not isinstance(seen.counts, Unknown):
            said = why.format(sums=plural(seen.sums, "checksum"), tensors=plural(seen.tensors, "tensor"))
            yield RuledOut(cause, said)


def _place(claim: Finding) -> tuple[bool, int]:
    known = _ORDER.index(claim.cause) if claim.cause in _ORDER else len(_ORDER)
    return claim.level is not Level.ERROR, known
