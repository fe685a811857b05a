"""The manifest: what it verifies, and rejection of forged manifests."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import checkpoint_manifest
from holdfast.core.checkpoint_manifest import Manifest, ManifestEntry
from holdfast.core.errors import CheckpointUnreadable, CheckpointVersion, MissingFile

HASH = "0" * 32
MANIFEST = Manifest(
    step=7,
    at=1.5,
    ranks=2,
    values={"loss": 0.25},
    files=(ManifestEntry(path="a/b", size=3, xxh3=HASH),),
)


def changed(**different):
    return checkpoint_manifest.encode_sealed(msgspec.structs.replace(MANIFEST, **different))


def test_round_trip(tmp_path):
    checkpoint_manifest.write_manifest(tmp_path, MANIFEST)
    found = checkpoint_manifest.read_manifest(tmp_path)
    assert msgspec.structs.replace(found, seal="") == MANIFEST
    assert found.size == 3


@given(st.integers(0), st.integers(0, 255))
def test_any_changed_byte_is_detected(at, value):
    data = bytearray(checkpoint_manifest.encode_sealed(MANIFEST))
    at %= len(data)
    same = data[at] == value
    data[at] = value
    try:
        found = checkpoint_manifest.parse_manifest(bytes(data), "x")
    except CheckpointUnreadable:
        assert not same
    else:  # JSON whitespace carries no information
        assert msgspec.structs.replace(found, seal="") == MANIFEST


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is not valid"),
        (b"{}", "is not valid"),
        (b"[" * 100_000, "is not valid"),
        (b"\xff\xfe", "is not valid"),
        (b" " * (checkpoint_manifest.MAX_BYTES + 1), "larger than 64 MiB"),
        (
            changed(files=(ManifestEntry(path="/etc/passwd", size=1, xxh3=HASH),)),
            "names '/etc/passwd'",
        ),
        (
            changed(files=(ManifestEntry(path="a/../../b", size=1, xxh3=HASH),)),
            r"names 'a/../../b'",
        ),
        (changed(files=(ManifestEntry(path="a\0b", size=1, xxh3=HASH),)), "names"),
        (
            checkpoint_manifest.encode_sealed(MANIFEST).replace(b'"step": 7', b'"step": 8'),
            "was modified after it was written",
        ),
        (changed(step=-1), "is not valid"),
        (changed(ranks=0), "is not valid"),
    ],
)
def test_invalid_manifests_raise_one_sentence(data, why):
    with pytest.raises(CheckpointUnreadable, match=why) as caught:
        checkpoint_manifest.parse_manifest(data, "/checkpoints/x")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_newer_version_is_reported():
    with pytest.raises(CheckpointVersion, match=r"'holdfast/checkpoint/2'.*or a newer one"):
        checkpoint_manifest.parse_manifest(changed(schema="holdfast/checkpoint/2"), "x")


def test_find_damage(tmp_path):
    for name, content in {
        "good": b"abc",
        "changed": b"abd",
        "short": b"ab",
        "long": b"abcd",
    }.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    xxh3 = checkpoint_manifest.hash_file(tmp_path / "good")
    names = ("good", "changed", "short", "long", "gone")
    found = Manifest(
        step=1, files=tuple(ManifestEntry(path=name, size=3, xxh3=xxh3) for name in names)
    )
    kinds = {each.path: each.kind for each in checkpoint_manifest.find_damage(tmp_path, found)}
    assert kinds == {
        "changed": "changed",
        "short": "truncated",
        "long": "changed",
        "gone": "missing",
    }
    assert "changed" not in {
        each.path for each in checkpoint_manifest.find_damage(tmp_path, found, contents=False)
    }


def test_folder_names(tmp_path):
    assert checkpoint_manifest.step_of_folder(tmp_path / checkpoint_manifest.folder_name(12)) == 12
    assert checkpoint_manifest.folder_name(12_345_678_901) == "step-12345678901"
    for name in ("step-12", "step-0000000012-x", ".staging-step-0000000012-ab", "step-00000000-2"):
        assert checkpoint_manifest.step_of_folder(tmp_path / name) is None
    for step in (5, 12_345_678_901, 40):
        (tmp_path / checkpoint_manifest.folder_name(step)).mkdir()
    (tmp_path / "step-x").mkdir()
    assert [
        checkpoint_manifest.step_of_folder(path)
        for path in checkpoint_manifest.folders_newest_first(tmp_path)
    ] == [
        12_345_678_901,
        40,
        5,
    ]
    assert checkpoint_manifest.folders_newest_first(tmp_path / "none") == []


def test_missing_folders(tmp_path):
    with pytest.raises(CheckpointUnreadable, match="it has no manifest"):
        checkpoint_manifest.read_manifest(tmp_path)
    (tmp_path / checkpoint_manifest.FILE).mkdir()
    with pytest.raises(CheckpointUnreadable, match="its manifest is not a regular file"):
        checkpoint_manifest.read_manifest(tmp_path)
    with pytest.raises(MissingFile):
        checkpoint_manifest.write_manifest(tmp_path / "none", MANIFEST)
