"""Everything that can be seen of whether a checkpoint is whole, and of one save: looked at, not judged.

contents ─▶ cover of each tensor ─▶ one walk over the files ─▶ copies held together ─▶ Examined
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints import formats
from holdfast.facts.checkpoints.contents import ITEMSIZE, Contents, Piece, Tensor
from holdfast.facts.checkpoints.examining import torn
from holdfast.facts.checkpoints.examining.copies import Copy, copies
from holdfast.facts.checkpoints.examining.coverage import Cover, bytes_of, cover
from holdfast.facts.checkpoints.examining.numbers import Counter, Counts
from holdfast.facts.checkpoints.examining.walking import Checksum, Numbers, Tell, walk
from holdfast.facts.checkpoints.files import torch_files
from holdfast.facts.checkpoints.pieces import Reader
from holdfast.findings import Unknown

#: What a tensor is in the checkpoint, and its name: ("model", "w"), ("half", "w"), ("exp_avg", "w").
Key = tuple[str, str]


class WrongSum(msgspec.Struct, frozen=True):
    """A record of a file whose bytes are not those that were written; ``tensors`` stand in it."""

    file: str
    record: str
    tensors: tuple[Key, ...]


class EmptyPiece(msgspec.Struct, frozen=True):
    """A piece of a tensor that holds zeros alone, while the rest of it does not."""

    key: Key
    piece: Piece


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen. ``sums`` checksums were held against the bytes; ``bare`` files have none.

    ``broken`` says for each file that could not be read to its end why. ``covers`` are those of tensors that are not
    covered once and wholly; ``counts`` the numbers of every tensor (Unknown: they were not read).
    """

    contents: Contents
    sums: int = 0
    bare: tuple[str, ...] = ()
    wrong: tuple[WrongSum, ...] = ()
    broken: Mapping[str, str] = {}
    covers: Mapping[Key, Cover] = {}
    counts: Mapping[Key, Counts] | Unknown = Unknown("they were not read")
    empty: tuple[EmptyPiece, ...] = ()
    copies: tuple[Copy, ...] = ()
    times: torn.Times | Unknown = Unknown("it is one file")
    steps: Mapping[int, tuple[str, ...]] = {}
    latest: torn.Latest | None = None
    tensors: int = 0
    size: int = 0


def examine(contents: Contents, *, numbers: bool = True, tell: Tell | None = None) -> Examined:
    """Look at everything; without ``numbers`` no tensor is read. ``tell`` hears of bytes as they are read."""
    every = dict(every_tensor(contents))
    shards = {piece.file for tensor in every.values() for piece in tensor.pieces}
    seen = Examined(
        contents=contents,
        broken=_beyond(contents, every),
        covers={key: found for key, tensor in every.items() if (found := cover(tensor)) != Cover()},
        times=torn.times(contents, shards),
        steps=torn.steps(contents),
        latest=_latest(contents),
        tensors=len(every),
        size=sum(contents.files.values()),
    )
    return _read(seen, every, tell) if numbers else seen


def _latest(contents: Contents) -> torn.Latest | None:
    """What names it; where something is missing of it, with what could be taken in its place."""
    root = Path(contents.root)
    found = torn.latest(root)
    if found is None or not contents.gaps:
        return found
    return msgspec.structs.replace(
        found, whole=next(filter(lambda tag: _is_whole(root.parent / tag), found.others), "")
    )


def _is_whole(path: Path) -> bool:
    try:
        return not formats.read(path).gaps
    except CheckpointUnreadable:
        return False


def every_tensor(contents: Contents) -> Iterator[tuple[Key, Tensor]]:
    """All tensors of the model, its 16-bit copies, and the optimizer's state."""
    yield from ((("model", name), tensor) for name, tensor in contents.tensors.items())
    yield from ((("half", name), tensor) for name, tensor in contents.halves.items())
    for name, states in (contents.optimizer.tensors if contents.optimizer else {}).items():
        yield from (((state, name), tensor) for state, tensor in states.items())


def _beyond(contents: Contents, every: Mapping[Key, Tensor]) -> Mapping[str, str]:
    """Files that are not there or too short for what stands in them."""
    needed: dict[str, int] = {}
    for tensor in every.values():
        for piece in tensor.pieces:
            needed[piece.file] = max(needed.get(piece.file, 0), piece.offset + bytes_of(piece, tensor.dtype))
    found: dict[str, str] = {}
    for file, size in needed.items():
        try:
            there = (Path(contents.root) / file).stat().st_size
        except OSError as error:
            found[file] = (error.strerror or str(error)).lower()
            continue
        if there < size:
            found[file] = f"it is cut short: it has {there:,} bytes, and numbers in it go to {size:,}"
    return found


class _Spans:
    """What the walk is to look at: the numbers of every piece, and every record with a checksum."""

    def __init__(self, root: Path, reader: Reader) -> None:
        self.root, self.reader = root, reader
        self.numbers: list[Numbers] = []
        self.sums: list[Checksum] = []
        self.broken: dict[str, str] = {}
        self.summed: set[str] = set()
        self.scattered: dict[Key, Tensor] = {}  # whose numbers stand in the file with gaps

    def take(self, key: Key, tensor: Tensor) -> None:
        """The numbers of a tensor."""
        for number, packed in enumerate(tensor.pieces):
            try:
                piece = self._unpacked(packed, tensor)
            except CheckpointUnreadable as error:
                self.broken.setdefault(packed.file, error.why)
                continue
            size = bytes_of(piece, tensor.dtype)
            if size != piece.numel * ITEMSIZE[tensor.dtype]:
                self.scattered[key] = tensor
            else:
                where = (key[0], key[1], number)
                self.numbers.append(Numbers(piece.file, piece.offset, piece.offset + size, tensor.dtype, where))

    def _unpacked(self, piece: Piece, tensor: Tensor) -> Piece:
        if not piece.packed:
            return piece
        found = self.reader.packed_file(piece)
        self._records(piece.file, f"byte {piece.offset:,}: ", found.records)
        return self.reader.within(found, piece, tensor)

    def take_archive(self, file: str) -> bool:
        """The records of a file of torch.save; True where each has a checksum, or those of its pieces have."""
        path = self.root / file if file else self.root
        if file in self.summed:
            return True
        if file.endswith(".distcp") or not torch_files.is_zip(path):  # DCP's files are many archives in a row
            return False
        try:
            return self._records(file, "", torch_files.records(path))
        except CheckpointUnreadable as error:
            self.broken.setdefault(file, error.why)
            return True

    def _records(self, file: str, before: str, records: Mapping[str, torch_files.Record]) -> bool:
        # torch writes 0 for each where torch.serialization.set_crc32_options(False) was called.
        kept = {name: each for name, each in records.items() if each.crc or not each.size}
        self.sums += [
            Checksum(file, each.offset, each.offset + each.size, before + name, each.crc)
            for name, each in kept.items()
            if each.size
        ]
        self.summed |= {file} if kept else set()
        return len(kept) == len(records)


def _read(seen: Examined, every: Mapping[Key, Tensor], tell: Tell | None) -> Examined:
    """Everything that takes reading the numbers."""
    root = Path(seen.contents.root)
    with Reader(root) as reader:
        wanted = _Spans(root, reader)
        for key, tensor in every.items():
            wanted.take(key, tensor)
        bare = tuple(file for file in seen.contents.files if not wanted.take_archive(file))
        broken = walk(root, [*wanted.numbers, *wanted.sums], tell)
        counts, empty = _counted(every, wanted, reader)
        same = tuple(copies(seen.contents, reader))
    return msgspec.structs.replace(
        seen, broken={**wanted.broken, **broken, **seen.broken}, sums=sum(each.whole for each in wanted.sums),
        bare=bare, wrong=_wrong(wanted), counts=counts, empty=empty, copies=same,
    )  # fmt: skip


def _counted(
    every: Mapping[Key, Tensor], wanted: _Spans, reader: Reader
) -> tuple[Mapping[Key, Counts], tuple[EmptyPiece, ...]]:
    counts = {key: Counts() for key in every}
    for span in wanted.numbers:
        counts[span.key[:2]].add(span.counts)
    for key, tensor in wanted.scattered.items():
        counter = Counter(tensor.dtype)
        with suppress(CheckpointUnreadable):  # it is told among what is broken
            counter.update(memoryview(reader.whole(tensor).tobytes()))
        counts[key].add(counter.counts)
    return counts, tuple(
        EmptyPiece(span.key[:2], every[span.key[:2]].pieces[span.key[2]])
        for span in wanted.numbers
        if span.whole and span.counts.all_zero and counts[span.key[:2]].other
    )


def _wrong(wanted: _Spans) -> tuple[WrongSum, ...]:
    """The records whose bytes changed, each with the tensors in it."""
    return tuple(
        WrongSum(each.file, each.record, tuple(dict.fromkeys(
            span.key[:2] for span in wanted.numbers
            if span.file == each.file and span.start < each.stop and each.start < span.stop
        )))
        for each in wanted.sums if each.wrong
    )  # fmt: skip
