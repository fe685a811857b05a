"""Files cut into segments and written in any order equal files written at once."""

import io
import os
import zipfile
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.ckpt.contents import CheckpointContents, CheckpointFormat, Tensor, TensorShard
from holdfast.ckpt.convert.archive_frame import frame_bytes, record_starts
from holdfast.ckpt.convert.archives import Storages
from holdfast.ckpt.convert.crc import combine_crc32
from holdfast.ckpt.convert.files import (
    Archive,
    ArchiveRecord,
    SourceCopy,
    TargetFile,
    TargetFiles,
    TensorBox,
    TensorRun,
    Zeros,
    whole_tensor,
)
from holdfast.ckpt.convert.journal import Journal
from holdfast.ckpt.convert.layout import build_layout
from holdfast.ckpt.convert.writing import TargetWriter
from holdfast.core.errors import CheckpointFailed, CheckpointUnreadable
from tests.hypothesis_profiles import examples
from tests.unit.ckpt.convert.streamed import stream


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_combined_crc(parts):
    assert combine_crc32((zlib.crc32(each), len(each)) for each in parts) == zlib.crc32(
        b"".join(parts)
    )


def test_combined_crc_of_large_parts():
    part = os.urandom(1 << 20)
    assert combine_crc32([(zlib.crc32(part), len(part))] * 5) == zlib.crc32(part * 5)


@pytest.fixture(scope="module")
def tensors(tmp_path_factory):
    """Return a folder with tensors: one shard, rows, columns, transposed, flat, empty."""
    root = tmp_path_factory.mktemp("numbers")
    numbers = torch.arange(6000, dtype=torch.float32) * 1.1
    (root / "numbers").write_bytes(numbers.numpy().tobytes())

    def shard(offset, shape, start, **more):
        return TensorShard(file="numbers", offset=4 * offset, shape=shape, start=start, **more)

    found = {
        "one": ((40, 25), [shard(0, (40, 25), (0, 0))]),
        "rows": ((40, 25), [shard(1000, (15, 25), (25, 0)), shard(2000, (25, 25), (0, 0))]),
        "columns": ((40, 25), [shard(3000, (40, 5), (0, 0)), shard(3200, (40, 20), (0, 5))]),
        "transposed": ((40, 25), [shard(4000, (40, 25), (0, 0), strides=(1, 40))]),
        "flat": (
            (7, 11),
            [shard(5000, (50,), (0,), flat=True), shard(5100, (27,), (50,), flat=True)],
        ),
        "scalar": ((), [shard(5999, (), ())]),
        "empty": ((0, 3), []),
    }
    return root, {
        name: Tensor(name=name, dtype="float32", shape=shape, shards=tuple(shards))
        for name, (shape, shards) in found.items()
    }


def parts_of(tensors):
    yield b"header"
    for each in tensors.values():
        yield whole_tensor(each)
        yield whole_tensor(each, "bfloat16")
        yield TensorRun(each, each.numel // 3, each.numel // 2, "float32")
    for name in ("one", "rows", "columns", "transposed"):
        yield TensorBox(tensors[name], (3, 0), (11, 25), "float32")
        yield TensorBox(tensors[name], (3, 7), (11, 13), "float16")
    yield Zeros(3000)
    yield SourceCopy("numbers", 17, 2001)


def files_of(tensors):
    storages = Storages()
    value = {name: storages.tensor(each) for name, each in tensors.items()}
    saved = storages.file(value)
    parts = tuple(parts_of(tensors))
    return (
        TargetFile("parts", parts),
        TargetFile("deep/er/saved.pt", (saved,)),
        TargetFile("mixed", (b"before", saved, Zeros(5), saved)),
        TargetFile("records", (_archive(parts),)),
        TargetFile("nothing", ()),
    )


def _archive(parts):
    records = tuple(
        ArchiveRecord(f"data/{at}", (part, b"x", part)) for at, part in enumerate(parts)
    )
    end = next(
        at + len(data) for at, data in reversed(list(frame_bytes(records, [0] * len(records))))
    )
    return Archive(records, end)


def write(root, target, files, segment, identity="this"):
    """Write the files; return the bytes reported as written."""
    target.mkdir(exist_ok=True)
    reported = []
    journal = Journal(target.with_suffix(".journal"), target)
    journal.open(identity)
    try:
        TargetWriter(root, target, journal, reported.append).write(
            files, build_layout(files, segment)
        )
        journal.wait()
    finally:
        journal.close()
    return sum(reported)


@pytest.mark.parametrize("segment", [13, 100, 1024, 1 << 20])
def test_segments_equal_one_write(tensors, tmp_path, segment):
    root, found = tensors
    files = files_of(found)
    reported = write(root, tmp_path / "own", files, segment)
    stream(
        TargetFiles(files),
        CheckpointContents(format=CheckpointFormat.TORCH, root=str(root), tensors=found),
        tmp_path / "wanted",
    )
    for file in files:
        assert (tmp_path / "own" / file.path).read_bytes() == (
            tmp_path / "wanted" / file.path
        ).read_bytes(), file.path
    assert reported == sum(file.size for file in files)


@pytest.mark.parametrize("segment", [100, 1 << 20])
def test_archives_are_valid_zip_files(tensors, tmp_path, segment):
    root, found = tensors
    write(root, tmp_path / "own", files_of(found), segment)
    loaded = torch.load(tmp_path / "own" / "deep" / "er" / "saved.pt", weights_only=True)
    assert {name: tuple(each.shape) for name, each in loaded.items()} == {
        n: t.shape for n, t in found.items()
    }
    for path in ("deep/er/saved.pt", "records"):
        with zipfile.ZipFile(tmp_path / "own" / path) as archive:
            assert archive.testzip() is None


def test_large_record_uses_zip64():
    big = Tensor(name="big", dtype="uint8", shape=(5 << 30,), shards=())
    records = (ArchiveRecord("data/0", (whole_tensor(big),)), ArchiveRecord("version", (b"3\n",)))
    frames = list(frame_bytes(records, [1, 2]))
    assert [start % 64 for start in record_starts(records)] == [0, 0]
    entries = zipfile.ZipFile(_Sparse(dict(frames))).infolist()
    assert [(each.file_size, each.CRC) for each in entries] == [(5 << 30, 1), (2, 2)]


class _Sparse(io.RawIOBase):
    """A file with bytes at some offsets and zeros elsewhere."""

    def __init__(self, places):
        self._places, self._at = places, 0
        self._size = max(at + len(data) for at, data in places.items())

    def seekable(self):
        return True

    def seek(self, to, whence=0):
        self._at = to + (0, self._at, self._size)[whence]
        return self._at

    def on_progress(self):
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


def test_assembled_tensors_are_written_together(tensors):
    _, found = tensors
    columns = found["columns"]
    layout = build_layout(
        [
            TargetFile("a", (whole_tensor(columns), b"x")),
            TargetFile("b", (TensorBox(columns, (0, 2), (40, 2), "float32"),)),
        ]
    )
    assert [(each.path, each.assembled_tensor is columns) for each in layout.segments] == [
        ("a", False),
        ("a", True),
        ("b", True),
    ]


@settings(max_examples=examples(20))
@given(st.data())
def test_segments_cover_each_file_once(tensors, data):
    _, found = tensors
    parts = tuple(data.draw(st.lists(st.sampled_from(list(parts_of(found))), max_size=12)))
    layout = build_layout(
        [TargetFile("a", parts)], data.draw(st.sampled_from([1, 64, 5000, 1 << 20]))
    )
    at = 0
    for segment in sorted(layout.segments, key=lambda each: each.offset):
        assert segment.offset == at
        at += segment.size
    assert at == TargetFile("a", parts).size


def test_journaled_segments_are_skipped(tensors, tmp_path):
    root, found = tensors
    files = (
        TargetFile("a", tuple(parts_of(found))),
        TargetFile("b", (_archive(tuple(parts_of(found))),)),
    )
    target = tmp_path / "own"
    write(root, target, files, 512)
    before = {name: (target / name).read_bytes() for name in "ab"}
    lines = (tmp_path / "own.journal").read_text().splitlines(keepends=True)
    # Half of the journal is discarded and its last line truncated, as by a kill; zeros show what is not written again.
    (tmp_path / "own.journal").write_text("".join(lines[: len(lines) // 2]) + lines[-1][:-3])
    kept = len(lines) // 2 - 1
    (target / "a").write_bytes(bytes(len(before["a"])))
    reported = write(root, target, files, 512)
    assert reported == sum(len(each) for each in before.values())
    assert (target / "b").read_bytes() == before["b"]
    assert kept > 0
    assert (target / "a").read_bytes() != before["a"]
    assert len((tmp_path / "own.journal").read_text().splitlines()) == len(lines)


def test_journal_of_another_conversion_is_discarded(tensors, tmp_path):
    root, found = tensors
    files = (TargetFile("a", tuple(parts_of(found))),)
    write(root, tmp_path / "own", files, 512)
    before = (tmp_path / "own" / "a").read_bytes()
    (tmp_path / "own" / "a").write_bytes(b"")
    write(root, tmp_path / "own", files, 512, identity="that")
    assert (tmp_path / "own" / "a").read_bytes() == before


def test_concurrent_conversion_is_refused(tmp_path):
    one, two = (Journal(tmp_path / "journal", tmp_path / "target") for _ in range(2))
    one.open("this")
    with pytest.raises(CheckpointFailed, match="another process is writing to it"):
        two.open("this")
    one.close()
    two.open("this")
    two.close()


def test_names_outside_the_target_are_refused(tmp_path):
    for path in ("../a", "/etc/a", "b/../../a"):
        with pytest.raises(CheckpointUnreadable, match="outside the target"):
            write(tmp_path, tmp_path / "own", (TargetFile(path, (b"x",)),), 512)
