"""What is written trains: the script of FSDP2 as it stands, and as DeepSpeed from the JSON that it was made of."""

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from holdfast.plan.generate.files import generate
from holdfast.plan.generate.migration import Format, migrate
from holdfast.plan.generate.recipe import Curve, Descent, Rates, Training
from holdfast.plan.setup import FULL_PRECISION, Recompute, Setup, Strategy
from tests.saved.making import launched

pytestmark = pytest.mark.slow
SMALL = {"data": 2, "micro_batch": 2, "accumulation": 2, "sequence": 16}


def losses_in(text, word="step"):
    return [float(loss) for loss in re.findall(rf"^{word} \d+ loss (\S+)", text, re.MULTILINE)]


def printed(*command):
    """What two ranks print under torchrun."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    return launched(*command, ranks=2, environment=environment)


def script(files, folder):
    path = folder / "train_fsdp2.py"
    path.write_text(next(file.text for file in files if file.name == path.name))
    return path


def test_the_script_runs_as_it_stands(tmp_path):
    setup = Setup(**SMALL, replicas=2, recompute=Recompute.FULL)
    (made,) = generate(setup, Training(whole_save=False, descent=Descent(lr=0.01)), (Format.FSDP2,))
    losses = losses_in(printed(script(made.files, tmp_path), "--steps", 2, "--save", tmp_path / "saved"))
    assert len(losses) == 2
    assert 5 < losses[0] < 6  # about ln(256) before anything is learned
    assert losses[1] < losses[0]
    assert (tmp_path / "saved" / ".metadata").exists()


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed")
def test_deepspeed_and_the_script_migrated_from_its_json_learn_alike(tmp_path):
    setup = Setup(strategy=Strategy.ZERO2, precision=FULL_PRECISION, **SMALL)
    rates = Rates(curve=Curve.LINEAR, warmup_steps=2, total_steps=9, start=0.5)
    training = Training(clipping=0.5, descent=Descent(lr=0.01), schedule=rates)
    (made,) = generate(setup, training, (Format.DEEPSPEED,))
    config = json.loads(made.files[0].text)
    found = migrate(config, Format.FSDP2)
    path = script(found.files, tmp_path)
    config["optimizer"]["params"]["torch_adam"] = True  # DeepSpeed's own is compiled first
    (tmp_path / "deepspeed.json").write_text(json.dumps(config))
    text = printed(Path(__file__).with_name("trains_both_ways.py"), path, tmp_path / "deepspeed.json", 3)
    ours, theirs = losses_in(text), losses_in(text, "deepspeed")
    assert ours == pytest.approx(theirs, abs=1e-5)
    assert len(ours) == 3
    assert ours[0] - ours[2] > 0.1  # something was learned
