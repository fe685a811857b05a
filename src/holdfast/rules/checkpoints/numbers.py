"""What stands in the tensors of a checkpoint: NaN, infinities, nothing but zeros, copies that are not the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from holdfast.facts.checkpoints.examining.copies import Copy
from holdfast.facts.checkpoints.examining.numbers import Counts
from holdfast.facts.checkpoints.examining.survey import Examined, Key
from holdfast.findings import Fact, Finding, Level, Subject, Unknown, finding
from holdfast.report.text import plural
from holdfast.rules.causes import by_name
from holdfast.rules.checkpoints.whole import listed, tensor_name

#: A rank's part of a matrix that is smaller may well be zero by chance (padding, a row that is never looked up).
_LEAST_PIECE = 256


def judge(seen: Examined) -> Iterator[Finding]:
    """Findings about the numbers that were read."""
    if not isinstance(seen.counts, Unknown):
        yield from _not_finite(seen, seen.counts)
        yield from _zero(seen, seen.counts)
        yield from _empty(seen)
    yield from _copies(seen)


def _not_finite(seen: Examined, counts: Mapping[Key, Counts]) -> Iterator[Finding]:
    bad = {key: each for key, each in counts.items() if each.nan or (each.inf and not _is_mask(seen, key, each))}
    if bad:
        facts = tuple(_fact(seen, f"{tensor_name(key)}: {_counted(each)}") for key, each in bad.items())
        message = f"{plural(len(bad), 'tensor')} of {seen.contents.root} with numbers that are none: "
        message += listed([f"{tensor_name(key)} ({_counted(each)})" for key, each in bad.items()])
        yield _claim(seen, "checkpoint-numbers-not-finite", message, facts)


def _is_mask(seen: Examined, key: Key, counts: Counts) -> bool:
    """Infinities that are meant: an attention mask holds them and zeros alone, and a buffer may."""
    return key[0] in ("model", "half") and (not counts.other or key[1] in seen.contents.buffers)


def _counted(counts: Counts) -> str:
    parts = [f"{number:,} {word}" for number, word in ((counts.nan, "NaN"), (counts.inf, "infinite")) if number]
    return f"{' and '.join(parts)} of {counts.elements:,}"


def _zero(seen: Examined, counts: Mapping[Key, Counts]) -> Iterator[Finding]:
    weights = {key: each for key, each in counts.items() if key[0] == "model" and _is_float(seen, key)}
    zero = [key for key, each in weights.items() if each.all_zero]
    large = [key for key in zero if len(seen.contents.tensors[key[1]].shape) > 1 and weights[key].elements > 1]
    facts = tuple(_fact(seen, f"{tensor_name(key)}: {weights[key].elements:,} zeros") for key in large)
    if len(weights) > 1 and len(zero) == len(weights):
        message = f"every weight of {seen.contents.root} is nothing but zeros"
        yield _claim(seen, "checkpoint-weights-all-zero", message, facts)
    elif large:
        are = "is" if len(large) == 1 else "are"
        message = f"{plural(len(large), 'weight')} of {seen.contents.root} {are} nothing but zeros: "
        message += listed([tensor_name(key) for key in large])
        yield _claim(seen, "checkpoint-weights-all-zero", message, facts, level=Level.WARNING, confidence=0.6)
    yield from _zero_scalars(seen, [key for key in zero if not seen.contents.tensors[key[1]].shape], weights)
    yield from _zero_moments(seen, counts)


def _zero_scalars(seen: Examined, zero: Sequence[Key], weights: Mapping[Key, Counts]) -> Iterator[Finding]:
    """What torch's consolidation of Hugging Face shards makes of tensors without dimensions."""
    scalars = [key for key in weights if not seen.contents.tensors[key[1]].shape]
    if zero and len(zero) == len(scalars) and seen.contents.format in ("safetensors", "huggingface"):
        message = "every tensor without dimensions is 0.0, as torch's consolidation leaves them: "
        message += listed([name for _, name in zero])
        facts = tuple(_fact(seen, f"{key[1]} is 0.0") for key in zero)
        yield _claim(seen, "checkpoint-weights-all-zero", message, facts, level=Level.WARNING, confidence=0.5)


def _zero_moments(seen: Examined, counts: Mapping[Key, Counts]) -> Iterator[Finding]:
    """Steps were counted, and no gradient ever came."""
    moments = [each for key, each in counts.items() if key[0] == "exp_avg_sq" and each.elements]
    if len(moments) > 1 and all(each.all_zero for each in moments) and any(step > 1 for step in seen.steps):
        message = f"the optimizer of {seen.contents.root} counted {max(seen.steps):,} steps, and all its moments are 0"
        facts = (_fact(seen, f"exp_avg_sq of {len(moments):,} parameters is all zero"),)
        yield _claim(seen, "checkpoint-weights-all-zero", message, facts, level=Level.WARNING, confidence=0.7)


def _empty(seen: Examined) -> Iterator[Finding]:
    """The part of one rank, or of one file, is nothing but zeros."""
    empty = [
        each for each in seen.empty
        if each.key[0] in ("model", "half") and each.piece.numel >= _LEAST_PIECE and len(_shape(seen, each.key)) > 1
    ]  # fmt: skip
    if empty:
        files = list(dict.fromkeys(each.piece.file for each in empty))
        message = (
            f"what {listed(files)} hold of {listed(list(dict.fromkeys(tensor_name(each.key) for each in empty)))} "
        )
        facts = tuple(
            _fact(
                seen,
                f"{tensor_name(each.key)}: {each.piece.numel:,} zeros from {list(each.piece.start)} on",
                each.piece.file,
            )
            for each in empty
        )
        message += "is nothing but zeros, and the rest of it is not"
        yield _claim(seen, "checkpoint-weights-all-zero", message, facts, level=Level.WARNING, confidence=0.8)


_SAYS = {
    "replica": "replicas of {names} are not the same",
    "half": "the model's own copies of {names} are not those of the optimizer's weights",
    "tie": "weights that are tied are not the same: {names}",
}


def _copies(seen: Examined) -> Iterator[Finding]:
    for kind, sentence in _SAYS.items():
        bad = [each for each in seen.copies if each.kind == kind and _differ(each)]
        if bad:
            names = listed(list(dict.fromkeys(each.name for each in bad)))
            number = sum(each.kind == kind for each in seen.copies)
            facts = tuple(_fact(seen, _told(each), each.files[-1] if each.files else "") for each in bad)
            message = f"{sentence.format(names=names)} ({len(bad):,} of {number:,} pairs in {seen.contents.root})"
            yield _claim(seen, "checkpoint-copies-differ", message, facts)


def _differ(copy: Copy) -> bool:
    return not isinstance(copy.difference, Unknown) and copy.difference.differ > 0


def _told(copy: Copy) -> str:
    found = copy.difference
    if isinstance(found, Unknown):
        return found.why
    other = f" and {copy.other}" if copy.other != copy.name else ""
    where = f" in {' and '.join(copy.files)}" if any(copy.files) else ""
    return f"{copy.name}{other}{where}: {found.differ:,} of {found.elements:,} differ, by {found.max_abs:.3g} at most"


def _is_float(seen: Examined, key: Key) -> bool:
    return "float" in seen.contents.tensors[key[1]].dtype and key[1] not in seen.contents.buffers


def _shape(seen: Examined, key: Key) -> tuple[int, ...]:
    place = seen.contents.tensors if key[0] == "model" else seen.contents.halves
    return place[key[1]].shape


def _fact(seen: Examined, text: str, file: str = "") -> Fact:
    return Fact(text=text, origin=f"{seen.contents.root}/{file}" if file else seen.contents.root)


def _claim(
    seen: Examined,
    name: str,
    message: str,
    facts: tuple[Fact, ...],
    *,
    level: Level = Level.ERROR,
    confidence: float = 1.0,
) -> Finding:
    return finding(
        by_name(name), message, level=level, subject=Subject(file=seen.contents.root), evidence=facts,
        confidence=confidence,
    )  # fmt: skip
