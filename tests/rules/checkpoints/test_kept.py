"""What is found in real folders of checkpoints, healthy and damaged in each way."""

from __future__ import annotations

import os

import msgspec
import pytest

from holdfast import manifest
from holdfast.facts.checkpoints.kept import Unfinished, look
from holdfast.findings import Level
from holdfast.manifest import Entry, Manifest
from holdfast.rules.checkpoints.kept import another_model, judge


def made(root, step, content=b"tensors"):
    """A checkpoint as far as anybody but torch can tell."""
    folder = root / manifest.name_of(step)
    folder.mkdir(parents=True)
    (folder / "data").write_bytes(content)
    entry = Entry(path="data", size=len(content), xxh3=manifest.hash_of(folder / "data"))
    manifest.write(folder, Manifest(step=step, files=(entry,)))
    return folder


def newer(folder):
    found = msgspec.structs.replace(manifest.read(folder), schema="holdfast/checkpoint/2")
    (folder / manifest.FILE).write_bytes(manifest.sealed(found))


DAMAGES = {
    "one byte": (lambda folder: (folder / "data").write_bytes(b"tensorS"), "checkpoint-corrupt", "1 changed"),
    "shorter": (lambda folder: os.truncate(folder / "data", 3), "checkpoint-corrupt", "1 truncated"),
    "gone": (lambda folder: (folder / "data").unlink(), "checkpoint-corrupt", "1 missing"),
    "its manifest": (
        lambda folder: (folder / manifest.FILE).write_text("{}"), "checkpoint-corrupt", "its manifest cannot be read",
    ),
    "no manifest": (lambda folder: (folder / manifest.FILE).unlink(), "checkpoint-unfinished", "nobody finished it"),
    "newer": (newer, "checkpoint-of-newer-version", "holdfast/checkpoint/2"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_told_with_what_is_left(tmp_path, name):
    damage, cause, words = DAMAGES[name]
    made(tmp_path, 10)
    damage(made(tmp_path, 20))
    (claim,) = judge(look(tmp_path))
    assert (claim.cause, claim.level) == (cause, Level.ERROR)
    assert words in claim.message
    assert "step 10 is the newest whole one" in claim.message
    assert claim.subject.file == str(tmp_path / manifest.name_of(20))
    assert claim.evidence


def test_a_healthy_folder_gives_nothing(tmp_path):
    made(tmp_path, 10)
    made(tmp_path, 20)
    assert judge(look(tmp_path)) == ()


def test_who_compares_sizes_alone_does_not_say_fine(tmp_path):
    folder = made(tmp_path, 10)
    (folder / "data").write_bytes(b"tensorS")
    (claim,) = judge(look(tmp_path, contents=False))
    assert claim.level == Level.UNKNOWN


def test_no_other_is_whole_and_a_newer_one_is(tmp_path):
    first = made(tmp_path, 10)
    (first / "data").unlink()
    assert "no other is whole" in judge(look(tmp_path))[0].message
    made(tmp_path, 20)
    assert "a newer one is whole" in judge(look(tmp_path))[0].message


def test_what_was_never_finished(tmp_path):
    (tmp_path / ".staging-step-0000000030-ab").mkdir()
    (tmp_path / ".staging-step-0000000030-ab" / "data").write_bytes(b"12345")
    found = look(tmp_path)
    assert judge(found) == ()  # it may be being written
    (left,) = found.unfinished
    assert left.size == 5
    old = msgspec.structs.replace(found, unfinished=(Unfinished(left.path, left.size, 3600.0),))
    (claim,) = judge(old)
    assert (claim.cause, claim.level) == ("checkpoint-unfinished", Level.NOTE)


def test_a_folder_that_cannot_be_looked_at(tmp_path):
    (claim,) = judge(look(tmp_path / "none"))
    assert claim.level == Level.UNKNOWN
    assert "no such file" in claim.message


def test_another_model_names_every_difference_in_its_evidence():
    names = {
        "missing from the checkpoint": {f"layer{n}": "" for n in range(9)},
        "of another shape": {"a": " (2, not 3)"},
    }
    claim = another_model("/c/step-0000000010", names)
    assert claim.cause == "checkpoint-of-another-model"
    assert "9 missing from the checkpoint (layer0, layer1, layer2, layer3, layer4, …)" in claim.message
    assert len(claim.evidence) == 10
    assert claim.evidence[-1].text == "of another shape: a (2, not 3)"
