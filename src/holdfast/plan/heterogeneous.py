"""``heterogeneous.yaml``: groups of ranks with what each of them does in a step, checked before anything starts::

    batch: 64                        # samples of all ranks in a step, exactly
    meeting: micro-batch             # or step: DDP under no_sync, ZeRO-1
    groups:
      - name: A100-80G
        ranks: 0-1                   # or [0, 1], or 0
        micro_batch: 24              # samples a rank at once; [13, 12]: of each of its micro-batches
        accumulation: 1              # micro-batches a step
        precision: bf16              # or fp16, fp32
        stages: [0, 1]               # of a pipeline that these ranks hold; all where left out

All that is wrong is said at once, with its line. Nodes are read and nothing is built from them, so that a hostile file
cannot start anything.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby

import msgspec

from holdfast.errors import BadValue
from holdfast.plan.batches import Allotment, Meeting, allot, linear, nearest, possible
from holdfast.plan.nodes import Problem, Reader
from holdfast.plan.shares import Shares
from holdfast.report.ranksets import say_ranks

PRECISIONS = ("bf16", "fp16", "fp32")
_MEETINGS = {"micro-batch": Meeting.MICRO_BATCH, "step": Meeting.STEP}
_KEYS = ("batch", "meeting", "groups")
_GROUP_KEYS = ("name", "ranks", "micro_batch", "accumulation", "precision", "stages")
#: A rank beyond is a slip of the finger, and would make a very long list.
MOST_RANKS = 1 << 20


class Group(msgspec.Struct, frozen=True):
    """Ranks that all do the same; ``sizes`` of each one's micro-batches; ``stages`` empty: the model is not divided."""

    name: str
    ranks: tuple[int, ...]
    sizes: tuple[int, ...]
    precision: str = ""
    stages: tuple[int, ...] = ()
    line: int = 0

    @property
    def samples(self) -> int:
        """Of all its ranks in a step."""
        return len(self.ranks) * sum(self.sizes)


class Heterogeneous(msgspec.Struct, frozen=True):
    """What the file says, and it is consistent: each rank in one group, and ``batch`` met exactly at each stage."""

    batch: int
    meeting: Meeting
    groups: tuple[Group, ...]

    @property
    def world(self) -> int:
        """Ranks."""
        return sum(len(group.ranks) for group in self.groups)

    @property
    def precision(self) -> str:
        """The one that all groups give; empty where they give none, or stages of a pipeline differ."""
        found = {group.precision for group in self.groups}
        return found.pop() if len(found) == 1 else ""

    def shares(self, stage: int = 0) -> Shares:
        """The shares of the ranks that hold a stage, in their order; without a pipeline, of all ranks."""
        here = [group for group in self.groups if not group.stages or stage in group.stages]
        return Shares(
            tuple(sizes for _, sizes in sorted((rank, g.sizes) for g in here for rank in g.ranks)), self.meeting
        )


def read(text: str, origin: str) -> Heterogeneous:
    """What the text of such a file says; ``origin`` is its name for people.

    Raises:
        BadValue: it is no YAML, or not consistent; all that is wrong is in it, by line.
    """
    reader = Reader(text, origin)
    fields = reader.fields(reader.root, _KEYS, ("batch", "groups"), "the file")
    batch = reader.number(fields.get("batch"), "batch")
    meeting = _MEETINGS[reader.word(fields.get("meeting"), "meeting", _MEETINGS) or "micro-batch"]
    found = [_group(reader, node) for node in reader.items(fields.get("groups"), "groups")]
    groups = tuple(group for group in found if group is not None)
    if len(groups) == len(found) and groups:
        unclear = _ranks(groups) + _stages(groups) + _counts(groups, meeting)
        reader.problems += unclear + _precisions(groups)
        if batch is not None and not unclear:
            reader.problems += _totals(groups, batch, meeting, reader.line(fields["batch"]))
    if reader.problems or batch is None:
        ordered = sorted(dict.fromkeys(reader.problems))
        raise BadValue(origin, why="; ".join(f"line {each.line}: {each.text}" for each in ordered), next_step="")
    return Heterogeneous(batch, meeting, groups)


def text(dealt: Allotment, precision: str) -> str:
    """The file that says what was dealt out: ranks beside each other that do the same are one group."""
    names = {meeting: name for name, meeting in _MEETINGS.items()}
    lines = [f"batch: {dealt.batch}", f"meeting: {names[dealt.meeting]}", "groups:"]
    for (kind, sizes), shares in groupby(dealt.shares, key=lambda share: (share.kind, share.micro_batches)):
        ranks = [share.rank for share in shares]
        lines += [f"  - name: {json.dumps(kind)}", f"    ranks: {ranks[0]}-{ranks[-1]}"]
        if len(set(sizes)) == 1:
            lines += [f"    micro_batch: {sizes[0]}", f"    accumulation: {len(sizes)}"]
        else:
            lines.append(f"    micro_batch: {list(sizes)}")
        lines += [f"    precision: {precision}"] if precision in PRECISIONS else []
    return "\n".join(lines) + "\n"


def _group(reader: Reader, node: object) -> Group | None:
    """One group; None where something in it is wrong, which the reader has noted."""
    before = len(reader.problems)
    fields = reader.fields(node, _GROUP_KEYS, ("name", "ranks", "micro_batch"), "a group")
    name = reader.text(fields.get("name"), "name")
    ranks = reader.spans(fields.get("ranks"), "ranks", MOST_RANKS)
    sizes = reader.numbers(fields.get("micro_batch"), "micro_batch")
    given = fields.get("accumulation")
    rounds = reader.number(given, "accumulation") if given is not None else None
    precision = reader.word(fields.get("precision"), "precision", PRECISIONS)
    stages = reader.spans(fields["stages"], "stages", MOST_RANKS) if "stages" in fields else ()
    if len(sizes) == 1:
        sizes *= rounds or 1
    elif rounds is not None and rounds != len(sizes):
        reader.note(given, f"accumulation is {rounds}, and micro_batch lists {len(sizes)} sizes")
    if len(reader.problems) > before:
        return None
    return Group(name, ranks, sizes, precision, stages, reader.line(node))


def _ranks(groups: Sequence[Group]) -> list[Problem]:
    """Each rank in one group, and none left out."""
    found, owner = [], dict[int, Group]()
    for group in groups:
        twice: dict[int, list[int]] = {}
        for rank in group.ranks:
            if rank in owner:
                twice.setdefault(owner[rank].line, []).append(rank)
            owner.setdefault(rank, group)
        for line, ranks in twice.items():
            where = "twice in this group" if line == group.line else f"in the group of line {line} already"
            found.append(Problem(group.line, f"{say_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} {where}"))
    missing = sorted(set(range(max(owner) + 1)) - set(owner))
    if missing:
        found.append(
            Problem(groups[0].line, f"{say_ranks(missing)} {'is' if len(missing) == 1 else 'are'} in no group")
        )
    return found


def _precisions(groups: Sequence[Group]) -> list[Problem]:
    """Gradients are summed over the ranks of a stage, so that these have to agree."""
    found, first = [], dict[int, Group]()
    for group in groups:
        for stage in group.stages or (0,):
            other = first.setdefault(stage, group)
            if other.precision != group.precision:
                text = (
                    f"precision is {group.precision or 'not given'}, and {other.precision or 'not given'} in the group "
                    f"of line {other.line}: gradients are summed over both, and fp16 scales its losses"
                )
                found.append(Problem(group.line, text))
                break
    return found


def _stages(groups: Sequence[Group]) -> list[Problem]:
    """Where a pipeline is spoken of, every group has stages, and every stage a group."""
    if not any(group.stages for group in groups):
        return []
    found = [Problem(group.line, "it has no stages, and other groups have") for group in groups if not group.stages]
    held = {stage for group in groups for stage in group.stages}
    absent = sorted(set(range(max(held) + 1)) - held)
    return found + [Problem(groups[0].line, f"no group holds stage {stage} of the pipeline") for stage in absent[:8]]


def _counts(groups: Sequence[Group], meeting: Meeting) -> list[Problem]:
    """Equal numbers of micro-batches where ranks meet at each of them."""
    first = groups[0]
    if meeting is Meeting.STEP:
        return []
    return [
        Problem(group.line, f"{len(group.sizes)} micro-batches a step, and {len(first.sizes)} in the group of line "
                            f"{first.line}: ranks that meet at every micro-batch would wait for ever")
        for group in groups if len(group.sizes) != len(first.sizes)
    ]  # fmt: skip


def _totals(groups: Sequence[Group], batch: int, meeting: Meeting, line: int) -> list[Problem]:
    """The batch exactly, at each stage of a pipeline."""
    found = []
    for stage in sorted({stage for group in groups for stage in group.stages} or {0}):
        here = [group for group in groups if not group.stages or stage in group.stages]
        total = sum(group.samples for group in here)
        if here and total != batch:
            at = f" at stage {stage}" if here[0].stages else ""
            terms = " + ".join(f"{len(group.ranks)}·{sum(group.sizes)}" for group in here)
            text = f"batch is {batch}, and the groups make {terms} = {total}{at}; {_offer(here, batch, meeting)}"
            found.append(Problem(line, text))
    return found


def _offer(groups: Sequence[Group], batch: int, meeting: Meeting) -> str:
    """Sizes that make the batch, none larger than those given and in their proportion; else the nearest batches."""
    kinds = [linear(g.name, len(g.ranks), 1.0, 1 / max(g.sizes), max(g.sizes)) for g in groups]
    if possible(kinds, batch, meeting):
        shares, said = iter(allot(kinds, batch, meeting).shares), []
        for group in groups:
            sizes = [str(list(next(shares).micro_batches)) for _ in group.ranks]
            said.append(f"{group.name} {' and '.join(dict.fromkeys(sizes))}")
        return f"{batch} would be micro_batch {', '.join(said)}"
    return " or ".join(f"{near}" for near in nearest(kinds, batch, meeting) if near) + " can be met with such sizes"
