"""Lightning's Trainer resumes from converted checkpoints as from its own."""

import msgspec
import pytest
import torch

from holdfast.ckpt.contents import CheckpointFormat
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.writers import lightning as writer
from tests.golden.checkpoints.model import STEPS, loss_of, model, optimizer_of
from tests.unit.ckpt.convert.streamed import neutral, stream
from tests.unit.ckpt.convert.writers.trained import UNKNOWN, schedule_of

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
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": schedule_of(optimizer), "interval": "step"},
            }

    return Module


def run(lightning, module, path=None, *, batches=STEPS, **limits):
    """Train with a Trainer, optionally from a checkpoint."""
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **limits,
    )
    trainer.fit(module, torch.utils.data.DataLoader(torch.arange(batches)), ckpt_path=path)
    return trainer


@pytest.fixture(scope="module")
def uninterrupted(lightning, module_of):
    module = module_of()
    run(lightning, module, max_steps=ALL)
    return module.seen


@pytest.fixture
def contents(lightning, module_of, tmp_path):
    """Return the contents after STEPS steps, which are one epoch."""
    module = module_of()
    trainer = run(lightning, module, max_steps=STEPS)
    scheduler = trainer.lr_scheduler_configs[0].scheduler.state_dict()
    values = {"epoch": 1, "scheduler": scheduler}
    return neutral(tmp_path, module, trainer.optimizers[0], step=STEPS, values=values)


def resumed(lightning, module_of, contents, folder, **limits):
    """Return what a Trainer did after resuming."""
    written = writer.write(contents, ConvertOptions())
    module = module_of()
    run(lightning, module, stream(written, contents, folder / "out.ckpt"), **limits)
    return module.seen


@pytest.mark.parametrize(
    "limits", [{"max_steps": ALL}, {"max_epochs": 3, "limit_train_batches": 2}], ids=str
)
def test_trainer_resumes(lightning, module_of, contents, uninterrupted, tmp_path, limits):
    steps = resumed(lightning, module_of, contents, tmp_path, **limits)
    assert [(step, loss) for step, _epoch, _number, loss in steps] == [
        (step, loss) for step, _epoch, _number, loss in uninterrupted[STEPS:]
    ]
    assert steps[0][1:3] == (1, 0)


def test_unknown_epoch_starts_with_the_first(
    lightning, module_of, contents, uninterrupted, tmp_path
):
    values = {key: each for key, each in contents.values.items() if key != "epoch"}
    steps = resumed(
        lightning,
        module_of,
        msgspec.structs.replace(contents, values=values),
        tmp_path,
        batches=4,
        max_steps=ALL,
    )
    assert steps[0][:3] == (STEPS, 0, 0)
    assert [each[3] for each in steps] == [each[3] for each in uninterrupted[STEPS:]]


def test_loop_states_of_lightning_are_kept(contents, tmp_path):
    loops = {"fit_loop": {"epoch_progress": {"total": {"ready": 9}}}}
    own = msgspec.structs.replace(
        contents,
        format=CheckpointFormat.LIGHTNING,
        values={"loops": loops, "callbacks": {"a": {"b": 1}}, "mine": [4]},
    )
    found = torch.load(
        stream(writer.write(own, ConvertOptions()), own, tmp_path / "out.ckpt"), weights_only=True
    )
    assert (found["loops"], found["callbacks"], found["mine"]) == (loops, {"a": {"b": 1}}, [4])


def test_losses_are_reported(contents):
    bare = msgspec.structs.replace(contents, optimizer=None, step=UNKNOWN, values={})
    losses = writer.write(bare, ConvertOptions()).losses
    assert losses[0].startswith("No optimizer state was written: Trainer.fit refuses the file")
    assert losses[1].startswith("The source does not record its position in the epoch")
