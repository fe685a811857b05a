"""Files are cut into stretches, written in any order, and are the same as if they had been written in one."""

import io
import os
import zipfile
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.actions.conversion.archives import Storages
from holdfast.actions.conversion.files import Archive, Box, Copy, File, Record, Run, Written, Zeros, whole
from holdfast.actions.conversion.frames import frame, starts
from holdfast.actions.conversion.journal import Journal
from holdfast.actions.conversion.layout import lay_out
from holdfast.actions.conversion.sums import combined
from holdfast.actions.conversion.writing import Writer
from holdfast.errors import CheckpointFailed, CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Contents, Format, Piece, Tensor
from tests.actions.conversion.streamed import stream


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_the_crc_of_parts_is_that_of_the_whole(parts):
    assert combined((zlib.crc32(each), len(each)) for each in parts) == zlib.crc32(b"".join(parts))


def test_the_crc_of_large_parts():
    part = os.urandom(1 << 20)
    assert combined([(zlib.crc32(part), len(part))] * 5) == zlib.crc32(part * 5)


@pytest.fixture(scope="module")
def tensors(tmp_path_factory):
    """A folder, and tensors in it: of one piece, of shards by rows, by columns, transposed, flat, and empty."""
    root = tmp_path_factory.mktemp("numbers")
    numbers = torch.arange(6000, dtype=torch.float32) * 1.1
    (root / "numbers").write_bytes(numbers.numpy().tobytes())

    def piece(offset, shape, start, **more):
        return Piece(file="numbers", offset=4 * offset, shape=shape, start=start, **more)

    found = {
        "one": ((40, 25), [piece(0, (40, 25), (0, 0))]),
        "rows": ((40, 25), [piece(1000, (15, 25), (25, 0)), piece(2000, (25, 25), (0, 0))]),
        "columns": ((40, 25), [piece(3000, (40, 5), (0, 0)), piece(3200, (40, 20), (0, 5))]),
        "transposed": ((40, 25), [piece(4000, (40, 25), (0, 0), strides=(1, 40))]),
        "flat": ((7, 11), [piece(5000, (50,), (0,), flat=True), piece(5100, (27,), (50,), flat=True)]),
        "scalar": ((), [piece(5999, (), ())]),
        "empty": ((0, 3), []),
    }
    return root, {
        name: Tensor(name=name, dtype="float32", shape=shape, pieces=tuple(pieces))
        for name, (shape, pieces) in found.items()
    }


def parts_of(tensors):
    yield b"header"
    for each in tensors.values():
        yield whole(each)
        yield whole(each, "bfloat16")
        yield Run(each, each.numel // 3, each.numel // 2, "float32")
    for name in ("one", "rows", "columns", "transposed"):
        yield Box(tensors[name], (3, 0), (11, 25), "float32")
        yield Box(tensors[name], (3, 7), (11, 13), "float16")
    yield Zeros(3000)
    yield Copy("numbers", 17, 2001)


def files_of(tensors):
    storages = Storages()
    value = {name: storages.tensor(each) for name, each in tensors.items()}
    saved = storages.file(value)
    parts = tuple(parts_of(tensors))
    return (
        File("parts", parts), File("deep/er/saved.pt", (saved,)), File("mixed", (b"before", saved, Zeros(5), saved)),
        File("records", (_archive(parts),)), File("nothing", ()),
    )  # fmt: skip


def _archive(parts):
    records = tuple(Record(f"data/{at}", (part, b"x", part)) for at, part in enumerate(parts))
    end = next(at + len(data) for at, data in reversed(list(frame(records, [0] * len(records)))))
    return Archive(records, end)


def write(root, target, files, stretch, identity="this"):
    """Write the files; gives the bytes that were told."""
    target.mkdir(exist_ok=True)
    told = []
    journal = Journal(target.with_suffix(".journal"), target)
    journal.open(identity)
    try:
        Writer(root, target, journal, told.append).write(files, lay_out(files, stretch))
        journal.settle()
    finally:
        journal.close()
    return sum(told)


@pytest.mark.parametrize("stretch", [1, 100, 1024, 1 << 20])
def test_files_are_what_they_would_be_in_one_go(tensors, tmp_path, stretch):
    root, found = tensors
    files = files_of(found)
    told = write(root, tmp_path / "own", files, stretch)
    stream(Written(files), Contents(format=Format.TORCH, root=str(root), tensors=found), tmp_path / "wanted")
    for file in files:
        assert (tmp_path / "own" / file.path).read_bytes() == (tmp_path / "wanted" / file.path).read_bytes(), file.path
    assert told == sum(file.size for file in files)


@pytest.mark.parametrize("stretch", [100, 1 << 20])
def test_archives_are_those_of_torch_and_of_zip(tensors, tmp_path, stretch):
    root, found = tensors
    write(root, tmp_path / "own", files_of(found), stretch)
    loaded = torch.load(tmp_path / "own" / "deep" / "er" / "saved.pt", weights_only=True)
    assert {name: tuple(each.shape) for name, each in loaded.items()} == {n: t.shape for n, t in found.items()}
    for path in ("deep/er/saved.pt", "records"):
        with zipfile.ZipFile(tmp_path / "own" / path) as archive:
            assert archive.testzip() is None


def test_a_large_record_has_64_bit_sizes():
    big = Tensor(name="big", dtype="uint8", shape=(5 << 30,), pieces=())
    records = (Record("data/0", (whole(big),)), Record("version", (b"3\n",)))
    frames = list(frame(records, [1, 2]))
    assert [start % 64 for start in starts(records)] == [0, 0]
    entries = zipfile.ZipFile(_Sparse(dict(frames))).infolist()
    assert [(each.file_size, each.CRC) for each in entries] == [(5 << 30, 1), (2, 2)]


class _Sparse(io.RawIOBase):
    """A file that has bytes at some places, and zeros elsewhere."""

    def __init__(self, places):
        self._places, self._at = places, 0
        self._size = max(at + len(data) for at, data in places.items())

    def seekable(self):
        return True

    def seek(self, to, whence=0):
        self._at = to + (0, self._at, self._size)[whence]
        return self._at

    def tell(self):
        return self._at

    def read(self, size=-1):
        end = self._size if size is None or size < 0 else min(self._size, self._at + size)
        found = bytearray(max(0, end - self._at))
        for at, data in self._places.items():
            low, high = max(at, self._at), min(at + len(data), end)
            if low < high:
                found[low - self._at : high - self._at] = data[low - at : high - at]
        self._at = end
        return bytes(found)


def test_what_needs_the_whole_tensor_is_cut_out_of_it_together(tensors):
    _, found = tensors
    columns = found["columns"]
    layout = lay_out([File("a", (whole(columns), b"x")), File("b", (Box(columns, (0, 2), (40, 2), "float32"),))])
    assert [(each.path, each.whole is columns) for each in layout.stretches] == [("a", False), ("a", True), ("b", True)]


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_stretches_cover_each_file_once(tensors, data):
    _, found = tensors
    parts = tuple(data.draw(st.lists(st.sampled_from(list(parts_of(found))), max_size=12)))
    layout = lay_out([File("a", parts)], data.draw(st.sampled_from([1, 64, 5000, 1 << 20])))
    at = 0
    for stretch in sorted(layout.stretches, key=lambda each: each.offset):
        assert stretch.offset == at
        at += stretch.size
    assert at == File("a", parts).size


def test_what_the_journal_has_is_not_written_again(tensors, tmp_path):
    root, found = tensors
    files = (File("a", tuple(parts_of(found))), File("b", (_archive(tuple(parts_of(found))),)))
    target = tmp_path / "own"
    write(root, target, files, 512)
    before = {name: (target / name).read_bytes() for name in "ab"}
    lines = (tmp_path / "own.journal").read_text().splitlines(keepends=True)
    # Half of it is forgotten, and the last line is cut off, as by a kill; zeros show what is not written again.
    (tmp_path / "own.journal").write_text("".join(lines[: len(lines) // 2]) + lines[-1][:-3])
    kept = len(lines) // 2 - 1
    (target / "a").write_bytes(bytes(len(before["a"])))
    told = write(root, target, files, 512)
    assert told == sum(len(each) for each in before.values())
    assert (target / "b").read_bytes() == before["b"]
    assert kept > 0
    assert (target / "a").read_bytes() != before["a"]
    assert len((tmp_path / "own.journal").read_text().splitlines()) == len(lines)


def test_a_journal_of_another_conversion_is_begun_anew(tensors, tmp_path):
    root, found = tensors
    files = (File("a", tuple(parts_of(found))),)
    write(root, tmp_path / "own", files, 512)
    before = (tmp_path / "own" / "a").read_bytes()
    (tmp_path / "own" / "a").write_bytes(b"")
    write(root, tmp_path / "own", files, 512, identity="that")
    assert (tmp_path / "own" / "a").read_bytes() == before


def test_two_processes_do_not_write_one_target(tmp_path):
    one, two = (Journal(tmp_path / "journal", tmp_path / "target") for _ in range(2))
    one.open("this")
    with pytest.raises(CheckpointFailed, match="another process is writing it"):
        two.open("this")
    one.close()
    two.open("this")
    two.close()


def test_names_that_lead_outside_are_refused(tmp_path):
    for path in ("../a", "/etc/a", "b/../../a"):
        with pytest.raises(CheckpointUnreadable, match="outside of the target"):
            write(tmp_path, tmp_path / "own", (File(path, (b"x",)),), 512)
