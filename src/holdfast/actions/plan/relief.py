"""A run that was out of memory, as it is described and as its log or snapshot tells: what to change, the best first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from holdfast.actions.diagnose import Diagnosis, diagnose
from holdfast.actions.plan.command import command
from holdfast.actions.plan.setup import batches, data_ranks, setup_of
from holdfast.actions.plan.wish import Run, Wish, needs, run, takes
from holdfast.errors import BadValue
from holdfast.facts import shortages
from holdfast.findings import Finding
from holdfast.plan.memory import Answer
from holdfast.plan.relief import Option, Relief, relief
from holdfast.plan.setup import Recompute, Setup
from holdfast.plan.time import Step
from holdfast.report.document import Document, Row, Section
from holdfast.report.evidence import size_text
from holdfast.report.text import percent
from holdfast.rules.shortage import FRAGMENTED, KEPT, TAKEN

_MOST_OPTIONS = 12


class Relieved(msgspec.Struct, frozen=True, kw_only=True):
    """The run as it was described, why it failed by its logs or snapshots (None: they do not say), what would help.

    ``seen``: bytes in tensors when it failed, with those that were asked for; None where nobody says.
    """

    wish: Wish
    run: Run
    why: Finding | None
    seen: int | None
    relief: Relief


def relieved(wish: Wish, paths: Sequence[str]) -> Relieved:
    """What would help the run that ``wish`` describes and whose logs or snapshots lie under ``paths``.

    What was not said is taken as it is where nobody cares for memory: nothing computed again, one micro-batch.

    Raises:
        MissingFile: none of the paths is there.
        BadValue: several kinds of GPU, a module of one's own, or degrees and batches that do not go together.
    """
    if len(wish.parts) > 1 or not wish.model.towers:
        raise BadValue("--failed", why="changes are known for transformers on GPUs of one kind")
    found = diagnose(paths)
    data = data_ranks(wish)
    micro, times = batches(wish, data)[-1]
    one = run(wish, setup_of(wish, data, micro, times, wish.recompute or Recompute.NONE))
    missing, seen = _wanting(found)
    root = found.verdict.root
    why = root if root is not None and root.code.startswith("MEM") else None
    made = relief(lambda setup: needs(wish.model, setup, one.cluster), lambda setup: _takes(wish, setup), one.setup,
                  missing)  # fmt: skip
    return Relieved(wish=wish, run=one, why=why, seen=seen, relief=made)


def _takes(wish: Wish, setup: Setup) -> Step:
    return takes(wish.model, setup, wish.cluster.resized(setup.world_size), wish.conditions)


def _wanting(found: Diagnosis) -> tuple[int | None, int | None]:
    """Bytes that were too few, at least, and those that tensors would have had; of the rank where it was most."""
    told = []
    for device in (device for shot in found.snapshots for device in shot.devices if device.asked):
        asked = device.asked[-1]
        told.append((asked.size - (asked.free or 0), device.held + asked.size))
    for signal in found.logs.signals if found.logs is not None else ():
        short = shortages.parse(signal.line.text) if signal.name == "cuda-out-of-memory" else None
        if short is not None and short.wanted is not None and short.allocated is not None:
            told.append((short.wanted - (short.free or 0), short.allocated + short.wanted))
    missing, seen = max(told, default=(None, None), key=lambda one: one[0] or 0)
    return (max(missing, 0) if missing is not None else None), seen


def as_json(found: Relieved) -> dict[str, Any]:
    """For programs: bytes, and speeds as shares that are lost."""
    made = found.relief
    return {
        "needs": made.needs.worst, "memory": made.needs.memory, "answer": made.needs.answer, "missing": made.missing,
        "seen": found.seen,
        "changes": [
            {"what": each.change.what, "cost": each.change.cost, "saved": each.saved, "lost": each.lost,
             "enough": each.enough, "command": command(found.wish, each.change.setup)} for each in made.options
        ],
        "together": [{"what": each.what, "saved": each.saved, "answer": each.needs.answer} for each in made.together],
    }  # fmt: skip


# ---- for people


def document(found: Relieved) -> Document:
    """The sheet: why it failed, what the model says it needs, and the changes."""
    worst, memory = found.relief.needs.worst, found.relief.needs.memory or 0
    says = f"the model of memory says {size_text(worst.total)} of {size_text(memory)}: {found.relief.needs.answer}"
    rows = [Row(says)]
    if found.seen is not None:
        rows.append(Row(f"when it failed, {size_text(found.seen)} would have been in tensors; the model has "
                        f"{size_text(worst.tensors)} at its peak"))  # fmt: skip
    if found.relief.missing:
        rows.append(Row(f"at least {size_text(found.relief.missing)} were too few"))
    parts = ", ".join(f"{name} {size_text(nbytes)}" for name, nbytes in list(worst.rows())[:6])
    rows.append(Row(f"made of {parts}", style="aside"))
    if found.relief.needs.answer is Answer.FITS:
        rows.append(Row("so it is not the run that was described, or something else holds memory"))
    own = found.why is not None and found.why.cause in (FRAGMENTED, TAKEN, KEPT)
    first = [remedy.text for remedy in found.why.remedies[:1]] if found.why is not None and own else []
    title = found.why.message if found.why is not None else "the logs do not say why memory ran out"
    sections = (
        Section("memory", tuple(rows)), Section("first", tuple(Row(text) for text in first)),
        Section("changes", tuple(_changes(found))),
    )  # fmt: skip
    return Document("✗", title, "error", tuple(section for section in sections if section.rows))


def _changes(found: Relieved) -> Iterator[Row]:
    for number, option in enumerate(found.relief.options[:_MOST_OPTIONS], 1):
        yield Row(_said(option), mark=f"{number}.", style="strong" if option.enough else "plain")
        if option.enough:
            yield Row(command(found.wish, option.change.setup), style="command")
    for change in found.relief.together:
        yield Row(f"with {change.what}: {size_text(change.saved)} less, {change.needs.answer}", mark="+")


def _said(option: Option) -> str:
    lost = "speed not known" if option.lost is None else (
        f"{percent(option.lost)} slower" if option.lost > 0.005 else "as fast")  # fmt: skip
    enough = "enough alone" if option.enough else "not enough alone"
    return f"{option.change.what}: {size_text(option.saved)} less, {lost}, {enough} (costs {option.change.cost})"
