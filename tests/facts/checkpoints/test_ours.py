"""holdfast's own checkpoints, made by holdfast.Checkpoint, read without torch."""

import os

import pytest

from holdfast.errors import CheckpointUnreadable, CheckpointVersion
from holdfast.facts.checkpoints.contents import Format
from holdfast.facts.checkpoints.distributed import ours
from tests.facts.checkpoints.truth import same_optimizer, same_tensors, truth_of
from tests.saved.making import made, shared_store

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["holdfast", "holdfast-ddp"])
def test_what_the_class_saved_is_read_bit_by_bit(tmp_path_factory, kind):
    folder = made(shared_store(tmp_path_factory), kind, "torch_distributed", kind, ranks=2)
    saved, truth = folder / "saved" / "step-0000000003", truth_of(folder)
    assert ours.recognises(saved) is Format.HOLDFAST
    found = ours.read(saved)
    same_tensors(found, truth["model"])
    same_optimizer(found, truth["optimizer"])
    assert (found.step, found.world_size, found.gaps) == (3, 2, ())
    assert found.values["config.width"] == 20
    assert found.values["scheduler.last_epoch"] == 3
    assert found.values["loss"] == 1.5
    assert found.optimizer.groups[0].options["betas"] == (0.9, 0.999)


def test_files_that_are_not_as_the_manifest_says_are_gaps(tmp_path_factory, tmp_path):
    source = made(shared_store(tmp_path_factory), "holdfast", "torch_distributed", "holdfast", ranks=2) / "saved"
    saved = tmp_path / "step-0000000003"
    saved.mkdir()
    for each in (source / "step-0000000003").iterdir():
        (saved / each.name).write_bytes(each.read_bytes())
    os.truncate(saved / "__1_0.distcp", 100)
    (saved / "rank-00000.state").unlink()
    found = ours.read(saved)
    assert {(gap.kind, gap.file, gap.rank) for gap in found.gaps if gap.kind in ("truncated", "missing")} == {
        ("truncated", "__1_0.distcp", 1), ("missing", "rank-00000.state", 0),
    }  # fmt: skip
    data = (saved / "manifest.json").read_bytes()
    (saved / "manifest.json").write_bytes(data.replace(b"checkpoint/1", b"checkpoint/9"))
    with pytest.raises(CheckpointVersion):
        ours.read(saved)
    (saved / "manifest.json").write_bytes(data.replace(b'"step": 3', b'"step": 4'))
    with pytest.raises(CheckpointUnreadable, match="changed"):
        ours.read(saved)
