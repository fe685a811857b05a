"""Lightning's Trainer, interrupted and resumed in the middle of an epoch."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from importlib.util import find_spec

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader

from holdfast.core.checkpoint_manifest import folders_newest_first
from holdfast.core.errors import CheckpointFailed, LossNotFinite
from holdfast.training.checkpoint.folder_owner import FILE, CheckpointOwner
from holdfast.training.checkpoint.job_identity import host_name, start_ticks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(find_spec("lightning") is None, reason="needs lightning"),
]


class Died(Exception):
    pass


@cache
def model_class():
    """Return the model's class; at module level, Lightning would cost each collection 3 s."""
    import lightning.pytorch as lightning

    class Model(lightning.LightningModule):
        def __init__(self, fault=None):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.drop = torch.nn.Dropout(0.5)
            self.fault = fault
            self.trace = {}

        def training_step(self, batch, _):
            step = self.global_step + 1
            if self.fault and self.fault[0] == step:
                self.fault[1](self)
            loss = self.drop(self.layer(batch / 32)).square().mean()
            self.trace[step] = (float(loss).hex(), batch.flatten().tolist())
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    return Model


def die(_):
    raise Died


def corrupt_weights(model):
    with torch.no_grad():
        model.layer.weight.fill_(math.nan)


def warn(_):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)


def train(folder, fault=None, **options):
    """Train from the newest valid checkpoint; return the loss and samples of each step."""
    import lightning.pytorch as lightning

    from holdfast.training.callbacks.lightning import HoldfastCallback, resumable

    torch.manual_seed(0)
    model = model_class()(fault)
    data = torch.arange(32.0).reshape(32, 1)
    loader = resumable(
        DataLoader(data, 4, shuffle=True, generator=torch.Generator().manual_seed(3))
    )
    guard = HoldfastCallback(folder / "checkpoints", every=None, every_steps=3, keep_last=2)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[guard],
        **options,
    )
    with suppress(Died):
        trainer.fit(model, loader, ckpt_path=guard.newest())
    return model.trace


def saved(folder):
    return [path.name for path in folders_newest_first(folder / "checkpoints")]


def test_training_resumes_in_the_middle_of_an_epoch(tmp_path):
    uninterrupted = train(tmp_path / "whole")
    assert len(uninterrupted) == 24
    first = train(tmp_path / "broken", fault=(14, die))
    assert saved(tmp_path / "broken") == ["step-0000000012", "step-0000000009"]
    second = train(tmp_path / "broken")
    assert min(second) == 13
    assert {step: used for step, (_, used) in {**first, **second}.items()} == {
        s: used for s, (_, used) in uninterrupted.items()
    }
    assert saved(tmp_path / "broken")[0] == "step-0000000024"


def test_a_nan_ends_training_before_it_is_saved(tmp_path):
    with pytest.raises(LossNotFinite, match="step 6"):
        train(tmp_path, fault=(6, corrupt_weights))
    assert saved(tmp_path) == ["step-0000000003"]


def test_a_preemption_signal_saves_and_exits(tmp_path):
    with pytest.raises(SystemExit) as ended:
        train(tmp_path, fault=(7, warn))
    assert ended.value.code == 128 + signal.SIGTERM
    assert saved(tmp_path)[0] in {"step-0000000007", "step-0000000008"}


def test_a_signal_amid_accumulated_batches_saves_before_lightning_ends_training(tmp_path):
    with pytest.raises(SystemExit) as ended:
        train(tmp_path, fault=(3, warn), accumulate_grad_batches=2)
    assert ended.value.code == 128 + signal.SIGTERM
    assert saved(tmp_path)[0] in {"step-0000000003", "step-0000000004"}


def test_training_that_ends_before_the_announced_save_says_so(tmp_path, caplog):
    def warn_and_die(model):
        warn(model)
        raise Died

    train(tmp_path, fault=(5, warn_and_die))
    assert "no emergency checkpoint: training ended after step 5 with Died" in caplog.text


def test_the_folder_of_another_job_is_refused(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir(exist_ok=True)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        owner = CheckpointOwner(
            job="run-a", host=host_name(), pid=other.pid, started=start_ticks(other.pid), since=0.0
        )
        (folder / FILE).write_bytes(msgspec.json.encode(owner))
        with pytest.raises(CheckpointFailed, match=r"belongs to another job .run run-a"):
            train(tmp_path)
        assert [path.name for path in folder.iterdir()] == [FILE]
        other.communicate(b"\n")
    train(tmp_path)  # that job is dead now
    assert not (folder / FILE).exists()
