"""Values of one rank that a callback of all ranks monitors."""

import pytest

from tests.unit.lint.programs import program_from_sources

NET = """
import lightning as L
import torch.nn.functional as F

class Net(L.LightningModule):
    def {step}(self, batch, index):
        loss = {loss}
        self.log({logged})
        return loss
"""
START = """
import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
from net import Net

L.Trainer({devices}, callbacks=[ModelCheckpoint(monitor="{name}")]).fit(Net())
"""
DEFAULTS = {
    "step": "validation_step",
    "loss": "F.mse_loss(self.layer(batch[0]), batch[1])",
    "logged": "'val_loss', loss",
    "devices": "devices=8",
    "name": "val_loss",
}


@pytest.mark.parametrize(
    ("parts", "count"),
    [
        ({}, 1),
        ({"logged": "'val_loss', loss, sync_dist=True"}, 0),
        ({"logged": "'val_loss', self.accuracy"}, 0),
        ({"logged": "'val_loss', loss, **self.options"}, 0),
        ({"loss": "self.all_gather(self.layer(batch)).mean()"}, 0),
        ({"step": "training_step"}, 0),
        ({"devices": "devices=1"}, 0),
        ({"name": "other"}, 0),
    ],
)
def test_a_monitored_loss_over_the_ranks_own_share(parts, count):
    parts = DEFAULTS | parts
    files = {
        "net": ("net.py", NET.format(**parts)),
        "start": ("start.py", START.format(**parts)),
    }
    found = program_from_sources(files).analyze()
    assert len([each for each in found if each.kind == "habit-branch"]) == count
