"""Generated files train: the FSDP2 script runs unchanged and matches DeepSpeed with the source JSON."""

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from holdfast.plan.generate.migration import ConfigFormat, migrate_settings, write_format
from holdfast.plan.generate.recipe import (
    LrDecay,
    LrSchedule,
    OptimizerValues,
    TrainingValues,
    build_recipe,
)
from holdfast.plan.setup import (
    FP32_PRECISION,
    ActivationCheckpointing,
    ShardingStrategy,
    TrainingSetup,
)
from tests.golden.checkpoints.making import launched

pytestmark = pytest.mark.slow
SMALL = {"data": 2, "micro_batch": 2, "accumulation": 2, "sequence": 16}


def losses_in(text, word="step"):
    return [float(loss) for loss in re.findall(rf"^{word} \d+ loss (\S+)", text, re.MULTILINE)]


def run_torchrun(*command):
    """Return the output of two ranks under torchrun."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return launched(*command, ranks=2, environment=environment)


def script(files, folder):
    path = folder / "train_fsdp2.py"
    path.write_text(next(file.text for file in files if file.name == path.name))
    return path


def test_generated_script_runs_unchanged(tmp_path):
    setup = TrainingSetup(**SMALL, replicas=2, recompute=ActivationCheckpointing.FULL)
    training = TrainingValues(gather_on_save=False, optimizer=OptimizerValues(lr=0.01))
    generated = write_format(build_recipe(setup, training), ConfigFormat.FSDP2)
    losses = losses_in(
        run_torchrun(script(generated.files, tmp_path), "--steps", 2, "--save", tmp_path / "saved")
    )
    assert len(losses) == 2
    assert 5 < losses[0] < 6  # about ln(256) before training
    assert losses[1] < losses[0]
    assert (tmp_path / "saved" / ".metadata").exists()


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed")
def test_migrated_script_trains_like_deepspeed(tmp_path):
    setup = TrainingSetup(strategy=ShardingStrategy.ZERO2, precision=FP32_PRECISION, **SMALL)
    rates = LrSchedule(decay=LrDecay.LINEAR, warmup_steps=2, total_steps=9, start=0.5)
    training = TrainingValues(clipping=0.5, optimizer=OptimizerValues(lr=0.01), schedule=rates)
    generated = write_format(build_recipe(setup, training), ConfigFormat.DEEPSPEED)
    config = json.loads(generated.files[0].text)
    result = migrate_settings(config, ConfigFormat.FSDP2)
    path = script(result.files, tmp_path)
    config["optimizer"]["params"]["torch_adam"] = (
        True  # DeepSpeed's optimizer would be compiled first
    )
    (tmp_path / "deepspeed.json").write_text(json.dumps(config))
    text = run_torchrun(
        Path(__file__).with_name("train_both.py"), path, tmp_path / "deepspeed.json", 3
    )
    fsdp2_losses, deepspeed_losses = losses_in(text), losses_in(text, "deepspeed")
    assert fsdp2_losses == pytest.approx(deepspeed_losses, abs=1e-5)
    assert len(fsdp2_losses) == 3
    assert fsdp2_losses[0] - fsdp2_losses[2] > 0.1  # the model learned
