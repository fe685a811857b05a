"""holdfast's own checkpoints as a conversion writes them: loaded by the class that loads its own, read again."""

import pytest
import torch

import holdfast
from holdfast import manifest
from holdfast.actions.conversion.options import Options
from holdfast.actions.conversion.writers import holdfast as writer
from holdfast.facts.checkpoints.contents import Format, Tensor
from holdfast.facts.checkpoints.distributed import ours
from holdfast.findings import Unknown
from tests.actions.conversion.streamed import neutral, stream
from tests.actions.conversion.writers.test_dcp_writer import going_on, next_losses, states_of
from tests.facts.checkpoints.truth import same_optimizer, same_tensors
from tests.saved.model import STEPS, loss_of, model, optimizer_of


@pytest.fixture
def trained():
    """A model that took some steps, and its optimizer."""
    module = model()
    optimizer = optimizer_of(module)
    for step in range(STEPS):
        loss_of(module, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    return module, optimizer


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_class_loads_what_is_written_and_goes_on(tmp_path, trained, ranks):
    module, optimizer = trained
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7)
    values = {f"lr_scheduler.{key}": each for key, each in schedule.state_dict().items()}
    values |= {"lr_scheduler.last_epoch": 3, "config.width": 20, "epoch": 1, "sampler.seed": 4}
    contents = neutral(tmp_path, module, optimizer, step=STEPS, values=values)
    written = writer.write(contents, Options(ranks=ranks))
    assert written.losses == ()
    root = stream(written, contents, tmp_path / "root")
    folder = root / "step-0000000003"
    assert list(manifest.damages(folder, manifest.read(folder))) == []

    other = model()
    again = optimizer_of(other)
    scheduler = torch.optim.lr_scheduler.StepLR(again, 7)
    restored = holdfast.Checkpoint(root, model=other, optimizer=again, scheduler=scheduler).load()
    assert (restored.step, restored.world, restored.config) == (STEPS, ranks, {"width": 20})
    assert restored.values == {"epoch": 1}
    assert scheduler.last_epoch == 3
    assert next_losses(other, again) == next_losses(module, optimizer)


def test_what_is_written_is_read_again_as_it_was(tmp_path, trained):
    module, optimizer = trained
    contents = neutral(tmp_path, module, optimizer, step=STEPS, values={"scheduler.last_epoch": 3})
    root = stream(writer.write(contents, Options(ranks=2)), contents, tmp_path / "root")
    folder = root / "step-0000000003"
    assert ours.recognises(folder) is Format.HOLDFAST
    found = ours.read(folder)
    same_tensors(found, module.state_dict())
    same_optimizer(found, states_of(module, optimizer))
    assert (found.step, found.world_size, found.values) == (STEPS, 2, {"scheduler.last_epoch": 3})
    assert found.optimizer.groups == contents.optimizer.groups
    assert (found.ties, found.gaps) == (contents.ties, ())


def test_what_it_cannot_hold_is_said(tmp_path, trained):
    module, optimizer = trained
    contents = neutral(
        tmp_path, module, optimizer, values={"average": Tensor(name="a", dtype="int8", shape=(0,), pieces=())}
    )
    losses = writer.write(contents, Options()).losses
    assert isinstance(contents.step, Unknown)
    assert any("step 0" in each for each in losses)
    assert any("average" in each for each in losses)


@pytest.mark.slow
def test_fsdp_goes_on_from_it(tmp_path, trained):
    module, optimizer = trained
    contents = neutral(tmp_path, module, optimizer, step=STEPS)
    root = stream(writer.write(contents, Options(ranks=3)), contents, tmp_path / "root")
    assert going_on(tmp_path, "holdfast", root) == pytest.approx(next_losses(module, optimizer), abs=1e-6)
