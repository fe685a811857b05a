"""A checkpoint of Lightning, as the writer makes it: its Trainer goes on from it as it would from its own."""

import msgspec
import pytest
import torch

from holdfast.actions.conversion.options import Options
from holdfast.actions.conversion.writers import lightning as writer
from holdfast.facts.checkpoints.contents import Format
from tests.actions.conversion.streamed import neutral, stream
from tests.actions.conversion.writers.trained import UNKNOWN, schedule_of
from tests.saved.model import STEPS, loss_of, model, optimizer_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
ALL = STEPS + 4


@pytest.fixture(scope="module")
def lightning():
    return pytest.importorskip("lightning.pytorch")


@pytest.fixture(scope="module")
def module_of(lightning):
    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model()
            self.seen = []

        def training_step(self, _batch, number):
            loss = loss_of(self.model, self.global_step)
            self.seen.append((self.global_step, self.current_epoch, number, loss.item()))
            return loss

        def configure_optimizers(self):
            optimizer = optimizer_of(self.model)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule_of(optimizer), "interval": "step"}}

    return Module


def run(lightning, module, path=None, *, batches=STEPS, **limits):
    """Train with a Trainer, from a checkpoint where there is one."""
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, **limits,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(torch.arange(batches)), ckpt_path=path)
    return trainer


@pytest.fixture(scope="module")
def uninterrupted(lightning, module_of):
    module = module_of()
    run(lightning, module, max_steps=ALL)
    return module.seen


@pytest.fixture
def contents(lightning, module_of, tmp_path):
    """After STEPS steps, which are one epoch."""
    module = module_of()
    trainer = run(lightning, module, max_steps=STEPS)
    scheduler = trainer.lr_scheduler_configs[0].scheduler.state_dict()
    values = {"epoch": 1, "scheduler": scheduler}
    return neutral(tmp_path, module, trainer.optimizers[0], step=STEPS, values=values)


def resumed(lightning, module_of, contents, folder, **limits):
    """What a Trainer did that went on from it."""
    written = writer.write(contents, Options())
    module = module_of()
    run(lightning, module, stream(written, contents, folder / "out.ckpt"), **limits)
    return module.seen


@pytest.mark.parametrize("limits", [{"max_steps": ALL}, {"max_epochs": 3, "limit_train_batches": 2}], ids=str)
def test_a_trainer_goes_on_from_it(lightning, module_of, contents, uninterrupted, tmp_path, limits):
    seen = resumed(lightning, module_of, contents, tmp_path, **limits)
    assert [(step, loss) for step, _epoch, _number, loss in seen] == [
        (step, loss) for step, _epoch, _number, loss in uninterrupted[STEPS:]
    ]
    assert seen[0][1:3] == (1, 0)


def test_one_that_does_not_know_its_epoch_begins_with_the_first(
    lightning, module_of, contents, uninterrupted, tmp_path
):
    values = {key: each for key, each in contents.values.items() if key != "epoch"}
    seen = resumed(
        lightning, module_of, msgspec.structs.replace(contents, values=values), tmp_path, batches=4, max_steps=ALL
    )
    assert seen[0][:3] == (STEPS, 0, 0)
    assert [each[3] for each in seen] == [each[3] for each in uninterrupted[STEPS:]]


def test_what_lightning_kept_of_its_loops_stays(contents, tmp_path):
    loops = {"fit_loop": {"epoch_progress": {"total": {"ready": 9}}}}
    own = msgspec.structs.replace(
        contents, format=Format.LIGHTNING, values={"loops": loops, "callbacks": {"a": {"b": 1}}, "mine": [4]}
    )
    found = torch.load(stream(writer.write(own, Options()), own, tmp_path / "out.ckpt"), weights_only=True)
    assert (found["loops"], found["callbacks"], found["mine"]) == (loops, {"a": {"b": 1}}, [4])


def test_what_it_does_not_know_is_said(contents):
    bare = msgspec.structs.replace(contents, optimizer=None, step=UNKNOWN, values={})
    losses = writer.write(bare, Options()).losses
    assert losses[0].startswith("It has no state of an optimizer: Trainer.fit refuses it")
    assert losses[1].startswith("The source does not say where in an epoch it was")
