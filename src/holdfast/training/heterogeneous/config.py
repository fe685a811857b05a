"""``heterogeneous.yaml``: what each group of ranks does in a step, validated before the start::

    batch: 64                        # samples of all ranks in a step, exactly
    meeting: micro-batch             # or step: DDP under no_sync, ZeRO-1
    groups:
      - name: A100-80G
        ranks: 0-1                   # or [0, 1], or 0
        micro_batch: 24              # samples per rank at once; [13, 12]: of each micro-batch
        accumulation: 1              # micro-batches per step
        precision: bf16              # or fp16, fp32; above the groups: of all
        stages: [0, 1]               # pipeline stages that these ranks hold; default: all

Groups may also be a mapping from their names. Common other names of keys and values are accepted:
``batch_size``, ``dtype: bfloat16``, ``stage``. All errors are reported at once, with their lines.
Only plain nodes are read and no objects are constructed, so that a hostile file cannot execute
anything.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate, groupby

import msgspec
import yaml

from holdfast.core.errors import InvalidValue
from holdfast.core.rank_sets import describe_ranks
from holdfast.training.heterogeneous.batch_allocation import (
    BatchAllocation,
    SyncPoint,
    allocate_batch,
    is_possible,
    linear_kind,
    nearest_batches,
)
from holdfast.training.heterogeneous.batch_shares import BatchShares
from holdfast.training.heterogeneous.yaml_fields import FieldProblem, FieldReader

PRECISIONS = ("bf16", "fp16", "fp32")
_SYNC_POINTS = {"micro-batch": SyncPoint.MICRO_BATCH, "step": SyncPoint.STEP}
_SYNC_WORDS = {name: name for name in _SYNC_POINTS} | {"microbatch": "micro-batch"}
_PRECISION_WORDS = {name: name for name in PRECISIONS} | {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
}
_KEYS = ("batch", "meeting", "groups", "precision")
_ALIASES = {
    "batch_size": "batch",
    "global_batch": "batch",
    "global_batch_size": "batch",
    "dtype": "precision",
}
_GROUP_ALIASES = {
    "rank": "ranks",
    "batch": "micro_batch",
    "batch_size": "micro_batch",
    "micro_batch_size": "micro_batch",
    "micro_batches": "micro_batch",
    "gradient_accumulation": "accumulation",
    "gradient_accumulation_steps": "accumulation",
    "dtype": "precision",
    "stage": "stages",
}
_GROUP_KEYS = ("name", "ranks", "micro_batch", "accumulation", "precision", "stages")
#: Larger rank numbers are typing errors, and would make a very long list.
MAX_RANKS = 1 << 20


class DeviceGroup(msgspec.Struct, frozen=True):
    """Ranks with the same work.

    ``sizes``: of each rank's micro-batches; ``stages`` is empty if the model is not split.
    """

    name: str
    ranks: tuple[int, ...]
    sizes: tuple[int, ...]
    precision: str = ""
    stages: tuple[int, ...] = ()
    line: int = 0

    @property
    def samples(self) -> int:
        """Return the samples of all its ranks in a step."""
        return len(self.ranks) * sum(self.sizes)


class HeterogeneousConfig(msgspec.Struct, frozen=True):
    """A consistent file: each rank in one group, and ``batch`` met exactly at each stage."""

    batch: int
    meeting: SyncPoint
    groups: tuple[DeviceGroup, ...]

    @property
    def world(self) -> int:
        """Return the number of ranks."""
        return sum(len(group.ranks) for group in self.groups)

    @property
    def precision(self) -> str:
        """Return the precision of all groups; empty if unset, or if pipeline stages differ."""
        precisions = {group.precision for group in self.groups}
        return precisions.pop() if len(precisions) == 1 else ""

    @property
    def stages(self) -> int:
        """Return the number of pipeline stages; 1 if the model is not split."""
        return 1 + max((stage for group in self.groups for stage in group.stages), default=0)

    def spans(self, stage: int = 0) -> dict[int, tuple[range, ...]]:
        """Return which samples of a global batch each micro-batch has, by rank of a stage."""
        held = [group for group in self.groups if not group.stages or stage in group.stages]
        sizes = sorted((rank, group.sizes) for group in held for rank in group.ranks)
        ends = list(accumulate(size for _, each in sizes for size in each))
        starts = iter([0, *ends])
        return {
            rank: tuple(range(start := next(starts), start + size) for size in each)
            for rank, each in sizes
        }

    def shares(self, stage: int = 0) -> BatchShares:
        """Return the shares of the ranks that hold a stage; without a pipeline, of all."""
        stage_groups = [group for group in self.groups if not group.stages or stage in group.stages]
        return BatchShares(
            tuple(
                sizes
                for _, sizes in sorted((rank, g.sizes) for g in stage_groups for rank in g.ranks)
            ),
            self.meeting,
        )


def parse_heterogeneous(text: str, origin: str) -> HeterogeneousConfig:
    """Parse the text of such a file; ``origin`` is its display name.

    Raises:
        InvalidValue: invalid YAML or inconsistent; lists all errors by line.
    """
    reader = FieldReader(text, origin)
    fields = reader.fields(reader.root, _KEYS, ("batch", "groups"), "the file", _ALIASES)
    batch = reader.number(fields.get("batch"), "batch")
    meeting = _SYNC_POINTS[
        reader.word(fields.get("meeting"), "meeting", _SYNC_WORDS) or "micro-batch"
    ]
    precision = reader.word(fields.get("precision"), "precision", _PRECISION_WORDS)
    parsed = [
        _parse_group(reader, node, name, precision)
        for node, name in _group_nodes(reader, fields.get("groups"))
    ]
    groups = tuple(group for group in parsed if group is not None)
    if len(groups) == len(parsed) and groups:
        of_stages = _check_stages(groups)
        reader.problems += _check_ranks(groups) + of_stages + _check_counts(groups, meeting)
        reader.problems += _check_precisions(groups)
        ranks = [rank for group in groups for rank in group.ranks]
        # Ranks that are counted twice, or in no stage, make no meaningful total.
        if batch is not None and not of_stages and len(set(ranks)) == len(ranks):
            reader.problems += _check_totals(groups, batch, meeting, reader.line(fields["batch"]))
    if reader.problems or batch is None:
        ordered = sorted(dict.fromkeys(reader.problems))
        raise InvalidValue(
            origin,
            why="; ".join(f"line {each.line}: {each.text}" for each in ordered),
            next_step="",
        )
    return HeterogeneousConfig(batch, meeting, groups)


def render_heterogeneous(allocation: BatchAllocation, precision: str) -> str:
    """Render an allocation as a file: adjacent ranks with the same work form one group."""
    names = {meeting: name for name, meeting in _SYNC_POINTS.items()}
    lines = [f"batch: {allocation.batch}", f"meeting: {names[allocation.meeting]}", "groups:"]
    for (kind, sizes), shares in groupby(
        allocation.shares, key=lambda share: (share.kind, share.micro_batches)
    ):
        ranks = [share.rank for share in shares]
        lines += [f"  - name: {json.dumps(kind)}", f"    ranks: {ranks[0]}-{ranks[-1]}"]
        if len(set(sizes)) == 1:
            lines += [f"    micro_batch: {sizes[0]}", f"    accumulation: {len(sizes)}"]
        else:
            lines.append(f"    micro_batch: {list(sizes)}")
        lines += [f"    precision: {precision}"] if precision in PRECISIONS else []
    return "\n".join(lines) + "\n"


def _group_nodes(
    reader: FieldReader, node: yaml.Node | None
) -> list[tuple[yaml.Node, yaml.Node | None]]:
    """Return each group and its name from outside: of a list (no names), or of a mapping."""
    if isinstance(node, yaml.MappingNode) and node.value:
        return [(group, name) for name, group in node.value]
    return [(group, None) for group in reader.items(node, "groups")]


def _parse_group(
    reader: FieldReader, node: yaml.Node, key: yaml.Node | None, default_precision: str
) -> DeviceGroup | None:
    """Parse one group; None on errors, which the reader records."""
    before = len(reader.problems)
    needed = ("ranks", "micro_batch") if key is not None else ("name", "ranks", "micro_batch")
    fields = reader.fields(node, _GROUP_KEYS, needed, "a group", _GROUP_ALIASES)
    name = reader.text(fields.get("name", key), "name")
    ranks = reader.spans(fields.get("ranks"), "ranks", MAX_RANKS)
    sizes = reader.numbers(fields.get("micro_batch"), "micro_batch")
    accumulation = fields.get("accumulation")
    rounds = reader.number(accumulation, "accumulation") if accumulation is not None else None
    precision = reader.word(fields.get("precision"), "precision", _PRECISION_WORDS)
    stages = reader.spans(fields["stages"], "stages", MAX_RANKS) if "stages" in fields else ()
    if len(sizes) == 1:
        sizes *= rounds or 1
    elif rounds is not None and rounds != len(sizes):
        reader.note(
            accumulation, f"accumulation is {rounds}, but micro_batch lists {len(sizes)} sizes"
        )
    if len(reader.problems) > before:
        return None
    return DeviceGroup(
        name, ranks, sizes, precision or default_precision, stages, reader.line(node)
    )


def _check_ranks(groups: Sequence[DeviceGroup]) -> list[FieldProblem]:
    """Check that each rank is in one group and none is missing."""
    problems, owner = [], dict[int, DeviceGroup]()
    for group in groups:
        duplicates: dict[int, list[int]] = {}
        for rank in group.ranks:
            if rank in owner:
                duplicates.setdefault(owner[rank].line, []).append(rank)
            owner.setdefault(rank, group)
        for line, ranks in duplicates.items():
            location = (
                "twice in this group"
                if line == group.line
                else f"already in the group of line {line}"
            )
            problems.append(
                FieldProblem(
                    group.line,
                    f"{describe_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} {location}",
                )
            )
    missing = sorted(set(range(max(owner) + 1)) - set(owner))
    if missing:
        problems.append(
            FieldProblem(
                groups[0].line,
                f"{describe_ranks(missing)} {'is' if len(missing) == 1 else 'are'} in no group",
            )
        )
    return problems


def _check_precisions(groups: Sequence[DeviceGroup]) -> list[FieldProblem]:
    """Check that the ranks of a stage agree: their gradients are summed."""
    problems, first = [], dict[int, DeviceGroup]()
    for group in groups:
        for stage in group.stages or (0,):
            other = first.setdefault(stage, group)
            if other.precision != group.precision:
                text = (
                    f"precision is {group.precision or 'not set'}, but "
                    f"{other.precision or 'not set'} in the group "
                    f"of line {other.line}: gradients are summed over both, and fp16 scales its "
                    "losses"
                )
                problems.append(FieldProblem(group.line, text))
                break
    return problems


def _check_stages(groups: Sequence[DeviceGroup]) -> list[FieldProblem]:
    """Check that either no group has stages, or all have and every stage has a group."""
    if not any(group.stages for group in groups):
        return []
    problems = [
        FieldProblem(group.line, "it has no stages, but other groups have")
        for group in groups
        if not group.stages
    ]
    stages_held = {stage for group in groups for stage in group.stages}
    absent = sorted(set(range(max(stages_held) + 1)) - stages_held)
    return problems + [
        FieldProblem(groups[0].line, f"no group holds stage {stage} of the pipeline")
        for stage in absent[:8]
    ]


def _check_counts(groups: Sequence[DeviceGroup], meeting: SyncPoint) -> list[FieldProblem]:
    """Check for equal numbers of micro-batches if ranks synchronize at each."""
    first = groups[0]
    if meeting is SyncPoint.STEP:
        return []
    return [
        FieldProblem(
            group.line,
            f"{len(group.sizes)} micro-batches per step, but {len(first.sizes)} in the group of "
            "line "
            f"{first.line}: ranks that synchronize at every micro-batch would deadlock",
        )
        for group in groups
        if len(group.sizes) != len(first.sizes)
    ]


def _check_totals(
    groups: Sequence[DeviceGroup], batch: int, meeting: SyncPoint, line: int
) -> list[FieldProblem]:
    """Check that the groups make the batch exactly, at each pipeline stage."""
    problems = []
    for stage in sorted({stage for group in groups for stage in group.stages} or {0}):
        stage_groups = [group for group in groups if not group.stages or stage in group.stages]
        total = sum(group.samples for group in stage_groups)
        if stage_groups and total != batch:
            at_stage = f" at stage {stage}" if stage_groups[0].stages else ""
            terms = " + ".join(f"{len(group.ranks)}·{sum(group.sizes)}" for group in stage_groups)
            text = (
                f"batch is {batch}, but the groups make {terms} = {total}{at_stage}; "
                f"{_suggest_sizes(stage_groups, batch, meeting)}"
            )
            problems.append(FieldProblem(line, text))
    return problems


def _suggest_sizes(groups: Sequence[DeviceGroup], batch: int, meeting: SyncPoint) -> str:
    """Suggest sizes that make the batch, in proportion and none larger; else nearest batches."""
    kinds = [linear_kind(g.name, len(g.ranks), 1.0, 1 / max(g.sizes), max(g.sizes)) for g in groups]
    if is_possible(kinds, batch, meeting):
        shares, suggestions = iter(allocate_batch(kinds, batch, meeting).shares), []
        for group in groups:
            sizes = [str(list(next(shares).micro_batches)) for _ in group.ranks]
            suggestions.append(f"{group.name} {' and '.join(dict.fromkeys(sizes))}")
        return f"for {batch} use micro_batch {', '.join(suggestions)}"
    return (
        " or ".join(
            f"{candidate}" for candidate in nearest_batches(kinds, batch, meeting) if candidate
        )
        + " would be possible with these sizes"
    )
