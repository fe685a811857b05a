"""Collects everything observable about the integrity of one checkpoint, without judging it.

contents ─▶ coverage of each tensor ─▶ one pass over the files ─▶ replicas ─▶ CheckpointSurvey
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.ckpt.contents import (
    ITEMSIZE,
    CheckpointContents,
    FileProblem,
    Tensor,
    TensorShard,
)
from holdfast.ckpt.files import torch_files, torch_legacy
from holdfast.ckpt.files.torch_pickle import GlobalRefused
from holdfast.ckpt.files.unreadable_files import problem_of
from holdfast.ckpt.formats import registry
from holdfast.ckpt.tensor_blocks import TensorReader
from holdfast.ckpt.verify import mixed_saves
from holdfast.ckpt.verify.coverage import Coverage, measure_coverage, shard_bytes
from holdfast.ckpt.verify.file_pass import ChecksumSpan, ProgressCallback, ValueSpan, read_spans
from holdfast.ckpt.verify.random_states import group_random_states
from holdfast.ckpt.verify.replicas import ReplicaPair, compare_replicas
from holdfast.ckpt.verify.shard_counters import CounterDifference, compare_counters
from holdfast.ckpt.verify.shard_names import find_misplaced, find_unnamed
from holdfast.ckpt.verify.shard_scale import ScaleDifference, compare_scales
from holdfast.ckpt.verify.values import ValueCounter, ValueCounts
from holdfast.ckpt.verify.zero_runs import ZeroRun, find_zero_runs
from holdfast.core.errors import CheckpointUnreadable
from holdfast.core.findings import Unknown
from holdfast.core.text import os_error_reason

_PICKLES = (".pt", ".pth", ".bin", ".pkl")
#: Section and name of a tensor: ("model", "w"), ("half", "w"), ("exp_avg", "w").
Key = tuple[str, str]


class ChecksumMismatch(msgspec.Struct, frozen=True):
    """A record whose bytes do not match its CRC32; ``tensors`` are stored in it."""

    file: str
    record: str
    tensors: tuple[Key, ...]


class ZeroShard(msgspec.Struct, frozen=True):
    """A shard that is all zeros while the rest of its tensor is not."""

    key: Key
    shard: TensorShard


class CheckpointSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about one checkpoint.

    ``sums`` checksums were compared; ``bare`` files have none. ``broken`` maps each file that could
    not be read completely to the reason. ``covers`` holds only tensors not covered exactly once;
    ``counts`` the value counts of every tensor (Unknown: not read). ``counters`` are values that
    differ between ranks' files, ``counted`` the files whose values were compared. ``misplaced``
    maps files to the name under which they were written; ``unnamed`` files do not record it.
    ``random_states`` are the files of ranks grouped by equal random states.
    """

    contents: CheckpointContents
    sums: int = 0
    bare: tuple[str, ...] = ()
    wrong: tuple[ChecksumMismatch, ...] = ()
    broken: Mapping[str, str] = {}
    covers: Mapping[Key, Coverage] = {}
    counts: Mapping[Key, ValueCounts] | Unknown = Unknown("not read")
    empty: tuple[ZeroShard, ...] = ()
    zero_runs: tuple[ZeroRun, ...] = ()
    scales: tuple[ScaleDifference, ...] = ()
    copies: tuple[ReplicaPair, ...] = ()
    times: mixed_saves.WriteTimes | Unknown = Unknown("the checkpoint is one file")
    steps: Mapping[int, tuple[str, ...]] = {}
    latest: mixed_saves.LatestPointer | None = None
    counters: tuple[CounterDifference, ...] = ()
    counted: frozenset[str] = frozenset()
    misplaced: Mapping[str, str] = {}
    unnamed: tuple[str, ...] = ()
    random_states: tuple[tuple[str, ...], ...] = ()
    tensors: int = 0
    size: int = 0


def survey_checkpoint(
    contents: CheckpointContents,
    *,
    numbers: bool = True,
    on_progress: ProgressCallback | None = None,
) -> CheckpointSurvey:
    """Survey a checkpoint; without ``numbers`` no tensor is read.

    ``on_progress`` receives bytes as they are read.
    """
    tensors = dict(all_tensors(contents))
    shard_files = {shard.file for tensor in tensors.values() for shard in tensor.shards}
    contents = msgspec.structs.replace(
        contents, problems=(*contents.problems, *_refused_beside(contents, shard_files))
    )
    counters, counted = compare_counters(contents)
    survey = CheckpointSurvey(
        contents=contents,
        broken=_short_files(contents, tensors),
        covers={
            key: coverage
            for key, tensor in tensors.items()
            if (coverage := measure_coverage(tensor)) != Coverage()
        },
        times=mixed_saves.measure_write_times(contents, shard_files),
        steps=mixed_saves.optimizer_steps(contents),
        latest=_read_latest(contents),
        counters=counters,
        counted=counted,
        misplaced=find_misplaced(contents),
        unnamed=find_unnamed(contents),
        random_states=group_random_states(contents),
        tensors=len(tensors),
        size=sum(contents.files.values()),
    )
    return _read_values(survey, tensors, on_progress) if numbers else survey


def _refused_beside(
    contents: CheckpointContents, shard_files: Collection[str]
) -> Iterator[FileProblem]:
    """Yield the pickles beside the weights (``training_args.bin``) that would run code."""
    known = {problem.file for problem in contents.problems} | {*shard_files}
    for file in contents.files:
        if not file.endswith(_PICKLES) or file in known:
            continue
        try:
            torch_legacy.read_torch_file(Path(contents.root) / file)
        except CheckpointUnreadable as error:
            if isinstance(error.__cause__, GlobalRefused):
                yield problem_of(error, file, beside=True)


def _read_latest(contents: CheckpointContents) -> mixed_saves.LatestPointer | None:
    """Return the pointer to this checkpoint; if files are missing, with a complete alternative."""
    root = Path(contents.root)
    pointer = mixed_saves.read_latest_pointer(root)
    if pointer is None or not contents.problems:
        return pointer
    return msgspec.structs.replace(
        pointer,
        complete_tag=next(filter(lambda tag: _is_complete(root.parent / tag), pointer.others), ""),
    )


def _is_complete(path: Path) -> bool:
    try:
        return not registry.read_checkpoint(path).problems
    except CheckpointUnreadable:
        return False


def all_tensors(contents: CheckpointContents) -> Iterator[tuple[Key, Tensor]]:
    """Yield all model tensors, their copies, and optimizer state tensors."""
    yield from ((("model", name), tensor) for name, tensor in contents.tensors.items())
    yield from ((("half", name), tensor) for name, tensor in contents.halves.items())
    for name, states in (contents.optimizer.tensors if contents.optimizer else {}).items():
        yield from (((state, name), tensor) for state, tensor in states.items())


def _short_files(contents: CheckpointContents, tensors: Mapping[Key, Tensor]) -> Mapping[str, str]:
    """Return files that are missing or too short for the tensors stored in them."""
    needed: dict[str, int] = {}
    for tensor in tensors.values():
        for shard in tensor.shards:
            needed[shard.file] = max(
                needed.get(shard.file, 0), shard.offset + shard_bytes(shard, tensor.dtype)
            )
    short: dict[str, str] = {}
    for file, size in needed.items():
        try:
            actual = (Path(contents.root) / file).stat().st_size
        except OSError as error:
            short[file] = os_error_reason(error)
            continue
        if actual < size:
            short[file] = (
                f"it is truncated: it has {actual:,} bytes, but tensors extend to byte {size:,}"
            )
    return short


class _SpanCollector:
    """Collects the spans to read: values of every shard, and every record with a checksum."""

    def __init__(self, root: Path, reader: TensorReader) -> None:
        self.root, self.reader = root, reader
        self.numbers: list[ValueSpan] = []
        self.sums: list[ChecksumSpan] = []
        self.broken: dict[str, str] = {}
        self.summed: set[str] = set()
        self.scattered: dict[Key, Tensor] = {}  # stored with gaps in the file

    def add_tensor(self, key: Key, tensor: Tensor) -> None:
        """Add the values of a tensor."""
        for number, packed in enumerate(tensor.shards):
            try:
                shard = self._unpacked(packed, tensor)
            except CheckpointUnreadable as error:
                self.broken.setdefault(packed.file, error.why)
                continue
            size = shard_bytes(shard, tensor.dtype)
            if size != shard.numel * ITEMSIZE[tensor.dtype]:
                self.scattered[key] = tensor
            else:
                where = (key[0], key[1], number)
                self.numbers.append(
                    ValueSpan(shard.file, shard.offset, shard.offset + size, tensor.dtype, where)
                )

    def _unpacked(self, shard: TensorShard, tensor: Tensor) -> TensorShard:
        if not shard.packed:
            return shard
        embedded = self.reader.read_packed_file(shard)
        self._records(shard.file, f"byte {shard.offset:,}: ", embedded.records)
        return self.reader.locate_in(embedded, shard, tensor)

    def add_archive(self, file: str) -> bool:
        """Add the records of a torch.save file; return whether all have a checksum."""
        path = self.root / file if file else self.root
        if file in self.summed:
            return True
        if file.endswith(".distcp") or not torch_files.is_zip(
            path
        ):  # DCP files are concatenated archives
            return False
        try:
            return self._records(file, "", torch_files.read_records(path))
        except CheckpointUnreadable as error:
            self.broken.setdefault(file, error.why)
            return True

    def _records(
        self, file: str, before: str, records: Mapping[str, torch_files.RecordPosition]
    ) -> bool:
        # torch stores 0 if torch.serialization.set_crc32_options(False) was called.
        checked = {
            name: record for name, record in records.items() if record.crc or not record.size
        }
        self.sums += [
            ChecksumSpan(
                file, record.offset, record.offset + record.size, before + name, record.crc
            )
            for name, record in checked.items()
            if record.size
        ]
        self.summed |= {file} if checked else set()
        return len(checked) == len(records)


def _read_values(
    survey: CheckpointSurvey, tensors: Mapping[Key, Tensor], on_progress: ProgressCallback | None
) -> CheckpointSurvey:
    """Add everything that requires reading the values."""
    root = Path(survey.contents.root)
    with TensorReader(root) as reader:
        spans = _SpanCollector(root, reader)
        for key, tensor in tensors.items():
            spans.add_tensor(key, tensor)
        bare = tuple(file for file in survey.contents.files if not spans.add_archive(file))
        broken = read_spans(root, [*spans.numbers, *spans.sums], on_progress)
        counts, empty = _sum_counts(tensors, spans, reader)
        replicas = tuple(compare_replicas(survey.contents, reader))
        zero_runs = find_zero_runs(tensors, spans.numbers, reader)
    return msgspec.structs.replace(
        survey,
        broken={**spans.broken, **broken, **survey.broken},
        sums=sum(span.complete for span in spans.sums),
        bare=bare,
        wrong=_checksum_mismatches(spans),
        counts=counts,
        empty=empty,
        copies=replicas,
        zero_runs=zero_runs,
        scales=compare_scales(spans.numbers),
    )


def _sum_counts(
    tensors: Mapping[Key, Tensor], spans: _SpanCollector, reader: TensorReader
) -> tuple[Mapping[Key, ValueCounts], tuple[ZeroShard, ...]]:
    counts = {key: ValueCounts() for key in tensors}
    for span in spans.numbers:
        counts[span.key[:2]].add(span.counts)
    for key, tensor in spans.scattered.items():
        counter = ValueCounter(tensor.dtype)
        with suppress(CheckpointUnreadable):  # reported in ``broken``
            counter.update(memoryview(reader.read_tensor(tensor).tobytes()))
        counts[key].add(counter.counts)
    return counts, tuple(
        ZeroShard(span.key[:2], tensors[span.key[:2]].shards[span.key[2]])
        for span in spans.numbers
        if span.complete and span.counts.all_zero and counts[span.key[:2]].other
    )


def _checksum_mismatches(spans: _SpanCollector) -> tuple[ChecksumMismatch, ...]:
    """Return the records that do not match their CRC32, each with its tensors."""
    return tuple(
        ChecksumMismatch(
            span.file,
            span.record,
            tuple(
                dict.fromkeys(
                    values.key[:2]
                    for values in spans.numbers
                    if values.file == span.file
                    and values.start < span.stop
                    and span.start < values.stop
                )
            ),
        )
        for span in spans.sums
        if span.wrong
    )
