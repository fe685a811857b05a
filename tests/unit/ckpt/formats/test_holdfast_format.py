"""Checkpoints of ``holdfast.Checkpoint``, read without torch."""

import os

import pytest

from holdfast.ckpt.contents import CheckpointFormat
from holdfast.ckpt.formats.distributed import holdfast as distributed_holdfast
from holdfast.core.errors import CheckpointUnreadable, CheckpointVersion
from tests.golden.checkpoints.making import made, shared_store
from tests.unit.ckpt.formats.truth import same_optimizer, same_tensors, truth_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["holdfast", "holdfast-ddp"])
def test_saved_checkpoint_is_bit_identical(tmp_path_factory, kind):
    folder = made(shared_store(tmp_path_factory), "torch_distributed", kind, ranks=2)
    saved, truth = folder / "saved" / "step-0000000003", truth_of(folder)
    assert distributed_holdfast.detect_format(saved) is CheckpointFormat.HOLDFAST
    found = distributed_holdfast.read_contents(saved)
    same_tensors(found, truth["model"])
    same_optimizer(found, truth["optimizer"])
    assert (found.step, found.world_size, found.problems) == (3, 2, ())
    assert found.values["config.width"] == 20
    assert found.values["scheduler.last_epoch"] == 3
    assert found.values["loss"] == 1.5
    assert found.optimizer.groups[0].options["betas"] == (0.9, 0.999)


def test_files_differing_from_the_manifest_are_reported(tmp_path_factory, tmp_path):
    store = shared_store(tmp_path_factory)
    source = made(store, "torch_distributed", "holdfast", ranks=2) / "saved"
    saved = tmp_path / "step-0000000003"
    saved.mkdir()
    for each in (source / "step-0000000003").iterdir():
        (saved / each.name).write_bytes(each.read_bytes())
    os.truncate(saved / "__1_0.distcp", 100)
    (saved / "rank-00000.state").unlink()
    found = distributed_holdfast.read_contents(saved)
    assert {
        (problem.kind, problem.file, problem.rank)
        for problem in found.problems
        if problem.kind in ("truncated", "missing")
    } == {
        ("truncated", "__1_0.distcp", 1),
        ("missing", "rank-00000.state", 0),
    }
    data = (saved / "manifest.json").read_bytes()
    (saved / "manifest.json").write_bytes(data.replace(b"checkpoint/1", b"checkpoint/9"))
    with pytest.raises(CheckpointVersion):
        distributed_holdfast.read_contents(saved)
    (saved / "manifest.json").write_bytes(data.replace(b'"step": 3', b'"step": 4'))
    with pytest.raises(CheckpointUnreadable, match="modified after it was written"):
        distributed_holdfast.read_contents(saved)
