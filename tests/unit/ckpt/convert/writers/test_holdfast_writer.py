"""Converted holdfast checkpoints load with ``holdfast.Checkpoint`` and read back unchanged."""

import pytest
import torch

import holdfast
from holdfast.ckpt.contents import CheckpointFormat, Tensor
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.writers import holdfast as writer
from holdfast.ckpt.formats.distributed import holdfast as distributed_holdfast
from holdfast.core import checkpoint_manifest
from holdfast.core.findings import Unknown
from tests.golden.checkpoints.model import STEPS, loss_of, model, optimizer_of
from tests.unit.ckpt.convert.streamed import neutral, stream
from tests.unit.ckpt.convert.writers.test_dcp_writer import next_losses, resumed_losses, states_of
from tests.unit.ckpt.formats.truth import same_optimizer, same_tensors


@pytest.fixture
def trained():
    """Return a model and its optimizer after a few steps."""
    module = model()
    optimizer = optimizer_of(module)
    for step in range(STEPS):
        loss_of(module, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    return module, optimizer


@pytest.mark.parametrize("ranks", [1, 2])
def test_checkpoint_class_loads_and_resumes(tmp_path, trained, ranks):
    module, optimizer = trained
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7)
    values = {f"lr_scheduler.{key}": each for key, each in schedule.state_dict().items()}
    values |= {"lr_scheduler.last_epoch": 3, "config.width": 20, "epoch": 1, "sampler.seed": 4}
    contents = neutral(tmp_path, module, optimizer, step=STEPS, values=values)
    written = writer.write(contents, ConvertOptions(ranks=ranks))
    assert written.losses == ()
    root = stream(written, contents, tmp_path / "root")
    folder = root / "step-0000000003"
    assert (
        list(checkpoint_manifest.find_damage(folder, checkpoint_manifest.read_manifest(folder)))
        == []
    )

    other = model()
    again = optimizer_of(other)
    scheduler = torch.optim.lr_scheduler.StepLR(again, 7)
    restored = holdfast.Checkpoint(root, model=other, optimizer=again, scheduler=scheduler).load()
    assert (restored.step, restored.world, restored.config) == (STEPS, ranks, {"width": 20})
    assert restored.values == {"epoch": 1}
    assert scheduler.last_epoch == 3
    assert next_losses(other, again) == next_losses(module, optimizer)


def test_read_back_is_identical(tmp_path, trained):
    module, optimizer = trained
    contents = neutral(tmp_path, module, optimizer, step=STEPS, values={"scheduler.last_epoch": 3})
    root = stream(writer.write(contents, ConvertOptions(ranks=2)), contents, tmp_path / "root")
    folder = root / "step-0000000003"
    assert distributed_holdfast.detect_format(folder) is CheckpointFormat.HOLDFAST
    found = distributed_holdfast.read_contents(folder)
    same_tensors(found, module.state_dict())
    same_optimizer(found, states_of(module, optimizer))
    assert (found.step, found.world_size, found.values) == (STEPS, 2, {"scheduler.last_epoch": 3})
    assert found.optimizer.groups == contents.optimizer.groups
    assert (found.ties, found.problems) == (contents.ties, ())


def test_losses_are_reported(tmp_path, trained):
    module, optimizer = trained
    contents = neutral(
        tmp_path,
        module,
        optimizer,
        values={"average": Tensor(name="a", dtype="int8", shape=(0,), shards=())},
    )
    losses = writer.write(contents, ConvertOptions()).losses
    assert isinstance(contents.step, Unknown)
    assert any("step 0" in each for each in losses)
    assert any("average" in each for each in losses)


@pytest.mark.slow
def test_fsdp_resumes(tmp_path, trained):
    module, optimizer = trained
    contents = neutral(tmp_path, module, optimizer, step=STEPS)
    root = stream(writer.write(contents, ConvertOptions(ranks=3)), contents, tmp_path / "root")
    assert resumed_losses(tmp_path, "holdfast", root) == pytest.approx(
        next_losses(module, optimizer), abs=1e-6
    )
