"""The manifest: what it proves, and what nobody can slip into it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import manifest
from holdfast.errors import CheckpointUnreadable, CheckpointVersion, MissingFile
from holdfast.manifest import Entry, Manifest

HASH = "0" * 32
WHOLE = Manifest(step=7, at=1.5, ranks=2, values={"loss": 0.25}, files=(Entry(path="a/b", size=3, xxh3=HASH),))


def changed(**different):
    return manifest.sealed(msgspec.structs.replace(WHOLE, **different))


def test_what_is_written_is_what_is_read(tmp_path):
    manifest.write(tmp_path, WHOLE)
    found = manifest.read(tmp_path)
    assert msgspec.structs.replace(found, seal="") == WHOLE
    assert found.size == 3


@given(st.integers(0), st.integers(0, 255))
def test_no_byte_can_be_changed(at, value):
    data = bytearray(manifest.sealed(WHOLE))
    at %= len(data)
    same = data[at] == value
    data[at] = value
    try:
        found = manifest.parse(bytes(data), "x")
    except CheckpointUnreadable:
        assert not same
    else:  # blanks between words say nothing
        assert msgspec.structs.replace(found, seal="") == WHOLE


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "cannot be read"),
        (b"{}", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b" " * (manifest.MOST_BYTES + 1), "more than 64 MiB"),
        (changed(files=(Entry(path="/etc/passwd", size=1, xxh3=HASH),)), "names '/etc/passwd'"),
        (changed(files=(Entry(path="a/../../b", size=1, xxh3=HASH),)), r"names 'a/../../b'"),
        (changed(files=(Entry(path="a\0b", size=1, xxh3=HASH),)), "names"),
        (manifest.sealed(WHOLE).replace(b'"step": 7', b'"step": 8'), "changed after it was written"),
        (changed(step=-1), "cannot be read"),
        (changed(ranks=0), "cannot be read"),
    ],
)
def test_what_is_no_manifest_is_refused_in_one_sentence(data, why):
    with pytest.raises(CheckpointUnreadable, match=why) as caught:
        manifest.parse(data, "/checkpoints/x")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_newer_version_is_told_apart():
    with pytest.raises(CheckpointVersion, match=r"'holdfast/checkpoint/2'.*or a newer one"):
        manifest.parse(changed(schema="holdfast/checkpoint/2"), "x")


def test_each_damage(tmp_path):
    for name, content in {"good": b"abc", "changed": b"abd", "short": b"ab", "long": b"abcd"}.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    xxh3 = manifest.hash_of(tmp_path / "good")
    names = ("good", "changed", "short", "long", "gone")
    found = Manifest(step=1, files=tuple(Entry(path=name, size=3, xxh3=xxh3) for name in names))
    kinds = {each.path: each.kind for each in manifest.damages(tmp_path, found)}
    assert kinds == {"changed": "changed", "short": "truncated", "long": "changed", "gone": "missing"}
    assert "changed" not in {each.path for each in manifest.damages(tmp_path, found, contents=False)}


def test_names_of_folders(tmp_path):
    assert manifest.step_of(tmp_path / manifest.name_of(12)) == 12
    assert manifest.name_of(12_345_678_901) == "step-12345678901"
    for name in ("step-12", "step-0000000012-x", ".staging-step-0000000012-ab", "step-00000000-2"):
        assert manifest.step_of(tmp_path / name) is None
    for step in (5, 12_345_678_901, 40):
        (tmp_path / manifest.name_of(step)).mkdir()
    (tmp_path / "step-x").mkdir()
    assert [manifest.step_of(path) for path in manifest.newest_first(tmp_path)] == [12_345_678_901, 40, 5]
    assert manifest.newest_first(tmp_path / "none") == []


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(CheckpointUnreadable, match="it has no manifest"):
        manifest.read(tmp_path)
    (tmp_path / manifest.FILE).mkdir()
    with pytest.raises(CheckpointUnreadable, match="its manifest is no file"):
        manifest.read(tmp_path)
    with pytest.raises(MissingFile):
        manifest.write(tmp_path / "none", WHOLE)
