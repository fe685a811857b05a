"""Findings in holdfast checkpoint folders, healthy and damaged in each way."""

from __future__ import annotations

import os

import msgspec
import pytest

from holdfast.core import checkpoint_manifest
from holdfast.core.checkpoint_manifest import Manifest, ManifestEntry
from holdfast.core.findings import Level
from holdfast.host.checkpoint_folder import UnfinishedFolder, inspect_folder
from holdfast.host.checkpoint_folder_rules import judge_checkpoint_folder


def make_checkpoint(root, step, content=b"tensors"):
    """Create a checkpoint that is valid for everything except torch."""
    folder = root / checkpoint_manifest.folder_name(step)
    folder.mkdir(parents=True)
    (folder / "data").write_bytes(content)
    entry = ManifestEntry(
        path="data", size=len(content), xxh3=checkpoint_manifest.hash_file(folder / "data")
    )
    checkpoint_manifest.write_manifest(folder, Manifest(step=step, files=(entry,)))
    return folder


def newer(folder):
    found = msgspec.structs.replace(
        checkpoint_manifest.read_manifest(folder), schema="holdfast/checkpoint/2"
    )
    (folder / checkpoint_manifest.FILE).write_bytes(checkpoint_manifest.encode_sealed(found))


DAMAGES = {
    "one byte": (
        lambda folder: (folder / "data").write_bytes(b"tensorS"),
        "checkpoint-corrupt",
        "1 changed",
    ),
    "shorter": (
        lambda folder: os.truncate(folder / "data", 3),
        "checkpoint-corrupt",
        "1 truncated",
    ),
    "gone": (lambda folder: (folder / "data").unlink(), "checkpoint-corrupt", "1 missing"),
    "its manifest": (
        lambda folder: (folder / checkpoint_manifest.FILE).write_text("{}"),
        "checkpoint-corrupt",
        "its manifest is not valid",
    ),
    "no manifest": (
        lambda folder: (folder / checkpoint_manifest.FILE).unlink(),
        "checkpoint-unfinished",
        "the save did not finish",
    ),
    "newer": (newer, "checkpoint-of-newer-version", "holdfast/checkpoint/2"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_reported_with_alternatives(tmp_path, name):
    damage, cause, words = DAMAGES[name]
    make_checkpoint(tmp_path, 10)
    damage(make_checkpoint(tmp_path, 20))
    (finding,) = judge_checkpoint_folder(inspect_folder(tmp_path))
    assert (finding.cause, finding.level) == (cause, Level.ERROR)
    assert words in finding.message
    assert "step 10 is the newest complete one" in finding.message
    assert finding.subject.file == str(tmp_path / checkpoint_manifest.folder_name(20))
    assert finding.evidence


def test_healthy_folder_has_no_findings(tmp_path):
    make_checkpoint(tmp_path, 10)
    make_checkpoint(tmp_path, 20)
    assert judge_checkpoint_folder(inspect_folder(tmp_path)) == ()


def test_size_comparison_is_inconclusive(tmp_path):
    folder = make_checkpoint(tmp_path, 10)
    (folder / "data").write_bytes(b"tensorS")
    (finding,) = judge_checkpoint_folder(inspect_folder(tmp_path, contents=False))
    assert finding.level == Level.UNKNOWN


def test_alternative_checkpoints(tmp_path):
    first = make_checkpoint(tmp_path, 10)
    (first / "data").unlink()
    assert (
        "no other one is complete" in judge_checkpoint_folder(inspect_folder(tmp_path))[0].message
    )
    make_checkpoint(tmp_path, 20)
    assert "a newer one is complete" in judge_checkpoint_folder(inspect_folder(tmp_path))[0].message


def test_unfinished_checkpoint(tmp_path):
    (tmp_path / ".staging-step-0000000030-ab").mkdir()
    (tmp_path / ".staging-step-0000000030-ab" / "data").write_bytes(b"12345")
    found = inspect_folder(tmp_path)
    assert judge_checkpoint_folder(found) == ()  # it may still be being written
    (left,) = found.unfinished
    assert left.size == 5
    old = msgspec.structs.replace(
        found, unfinished=(UnfinishedFolder(left.path, left.size, 3600.0),)
    )
    (finding,) = judge_checkpoint_folder(old)
    assert (finding.cause, finding.level) == ("checkpoint-unfinished", Level.NOTE)


def test_unreadable_folder(tmp_path):
    (finding,) = judge_checkpoint_folder(inspect_folder(tmp_path / "none"))
    assert finding.level == Level.UNKNOWN
    assert "no such file" in finding.message
