"""Hugging Face's Trainer, interrupted and resumed from a verified checkpoint."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec

import msgspec
import pytest
import torch

from holdfast.core import checkpoint_manifest
from holdfast.core.errors import CheckpointFailed, LossNotFinite
from holdfast.training.callbacks import newest
from holdfast.training.checkpoint.folder_owner import FILE, CheckpointOwner
from holdfast.training.checkpoint.job_identity import host_name, start_ticks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        not (find_spec("transformers") and find_spec("accelerate")),
        reason="needs transformers, and its Trainer accelerate",
    ),
]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x, labels=None):
        loss = (self.drop(self.layer(x)).squeeze(-1) - labels).square().mean()
        return {"loss": loss}


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return {"x": torch.full((4,), index / 32), "labels": torch.tensor(float(index % 3))}


class Died(Exception):
    pass


def die(_):
    raise Died


def corrupt_weights(model):
    with torch.no_grad():
        model.layer.weight.fill_(math.nan)


def train(folder, fault=None, **options):
    """Train from the newest valid checkpoint; return the logged losses by step."""
    import transformers

    from holdfast.training.callbacks.transformers import HoldfastCallback

    class FaultCallback(transformers.TrainerCallback):
        """Calls ``what`` at the start of a step."""

        def __init__(self, step, what):
            self.step, self.what = step, what

        def on_step_begin(self, args, state, control, model=None, **_):  # noqa: ARG002 - the Trainer's signature
            if state.global_step + 1 == self.step:
                self.what(model)

    torch.manual_seed(0)
    guard = HoldfastCallback(**options)
    arguments = transformers.TrainingArguments(
        str(folder),
        max_steps=12,
        per_device_train_batch_size=4,
        logging_steps=1,
        save_steps=4,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=1,
        learning_rate=1e-2,
        logging_nan_inf_filter=True,
    )
    callbacks = [guard] + ([FaultCallback(*fault)] if fault else [])
    trainer = transformers.Trainer(Model(), arguments, train_dataset=Data(), callbacks=callbacks)
    with suppress(Died):
        trainer.train(resume_from_checkpoint=guard.newest(folder))
    return {each["step"]: each["loss"] for each in trainer.state.log_history if "loss" in each}


def test_training_resumes_bit_identically_from_the_newest_valid_checkpoint(tmp_path, caplog):
    uninterrupted = train(tmp_path / "whole")
    broken = tmp_path / "broken"
    train(broken, fault=(11, die))
    assert newest(broken).name == "checkpoint-8"
    (broken / "checkpoint-8" / "trainer_state.json").write_text("{}")
    assert newest(broken).name == "checkpoint-4"
    assert "trainer_state.json" in caplog.text
    assert newest(broken, before=4) is None
    assert train(broken) == uninterrupted
    assert checkpoint_manifest.read_manifest(broken / "checkpoint-12").step == 12


def test_a_nan_ends_training_before_it_is_saved(tmp_path):
    with pytest.raises(LossNotFinite, match="step 7"):
        train(tmp_path, fault=(7, corrupt_weights))
    assert newest(tmp_path).name == "checkpoint-4"


def test_a_preemption_signal_saves_and_exits(tmp_path):
    with pytest.raises(SystemExit) as ended:
        train(
            tmp_path,
            fault=(
                6,
                lambda _: (os.kill(os.getpid(), signal.SIGTERM), __import__("time").sleep(1)),
            ),
        )
    assert ended.value.code == 128 + signal.SIGTERM
    assert newest(tmp_path).name in {"checkpoint-6", "checkpoint-7"}


def test_checkpoints_are_saved_at_the_time_interval(tmp_path):
    train(tmp_path, every=0.0)
    assert checkpoint_manifest.read_manifest(tmp_path / "checkpoint-3").step == 3


def test_the_folder_of_another_job_is_refused(tmp_path):
    folder = tmp_path
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
