"""DeepSpeed and Accelerate read what is written for them, with their own parsers."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from holdfast.plan.generate import deepspeed
from holdfast.plan.generate.files import generate
from holdfast.plan.generate.fsdp2_code import _schedule
from holdfast.plan.generate.mapping import row
from holdfast.plan.generate.migration import Format
from holdfast.plan.generate.recipe import Curve, Descent, Half, Place, Rates, Rise, Training, recipe
from holdfast.plan.setup import FULL_PRECISION, Offload, Optimizer, Precision, Recompute, Setup, Strategy

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("deepspeed") is None or find_spec("accelerate") is None, reason="the frameworks"),
]

BARE = Precision(compute=2, master=0, gradient=2, reduced=2, state=2)
CASES = {
    "zero1": (Setup(strategy=Strategy.ZERO1, data=4, micro_batch=2, accumulation=3), Training()),
    "zero2 offload": (Setup(strategy=Strategy.ZERO2, data=8, offload=Offload.OPTIMIZER), Training(clipping=0.0)),
    "zero3 nvme": (
        Setup(strategy=Strategy.ZERO3, data=16, accumulation=4, offload=Offload.PARAMETERS, recompute=Recompute.FULL),
        Training(half=Half.FP16, nvme="/scratch"),
    ),
    "ddp fp32": (Setup(strategy=Strategy.DDP, data=2, precision=FULL_PRECISION), Training()),
    "fsdp2": (Setup(data=8, micro_batch=4, optimizer=Optimizer.MOMENTUM), Training()),
    "bare": (
        Setup(data=8, precision=BARE),
        Training(schedule=Rates(curve=Curve.LINEAR, total_steps=9, warmup_steps=3)),
    ),
    "hsdp": (Setup(data=16, replicas=2, reshard=False), Training(descent=Descent(lr=1e-5))),
}
SCHEDULES = [
    Rates(
        curve=curve,
        warmup_steps=warmup,
        total_steps=40,
        rise=rise,
        start=0.25,
        end=0.1 if curve is Curve.COSINE else 0.0,
    )
    for curve in (Curve.CONSTANT, Curve.LINEAR, Curve.COSINE)
    for rise in Rise
    for warmup in (1, 7)
]


def written(name, form):
    setup, training = CASES[name]
    return generate(setup, training, (form,))[0].files


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("configurations")
    texts = [(setup.data, written(name, Format.DEEPSPEED)[0].text) for name, (setup, _) in CASES.items()]
    paths = []
    for name in CASES:
        for form in (Format.ACCELERATE_FSDP2, Format.ACCELERATE_DEEPSPEED):
            path = folder / f"{name.replace(' ', '_')}_{form}.yaml"
            path.write_text(written(name, form)[0].text)
            paths.append(str(path))
    curves = []
    for rates in SCHEDULES:
        made = deepspeed.settings(recipe(Setup(), Training(schedule=rates)))["scheduler"]
        curves.append((made["type"], made["params"], 3e-4, 50))
    asked = {"deepspeeds": [texts], "fields": [], "schedules": [curves], "accelerates": [paths]}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("reads.py")], input=json.dumps(asked), capture_output=True, text=True,
        check=False, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_deepspeed_reads_its_json_as_it_was_meant(answers):
    for (name, (setup, training)), found in zip(CASES.items(), answers["deepspeeds"], strict=True):
        meant = recipe(setup, training)
        assert found["batch"] == [setup.global_batch, setup.micro_batch, setup.accumulation], name
        assert found["stage"] == meant.sharded, name
        assert found["clipping"] == meant.clipping, name
        assert (found["bf16"], found["fp16"]) == (meant.half is Half.BF16, meant.half is Half.FP16), name
        assert found["away"] == [meant.optimizer_on.device.value, meant.parameters_on.device.value], name


def test_deepspeed_has_no_setting_that_the_mapping_does_not_know(answers):
    assert len(answers["fields"]) > 80
    blocks = {"zero_optimization.offload_param", "zero_optimization.offload_optimizer"}
    assert {key for key in answers["fields"] if row(key) is None} == blocks


def test_what_is_written_for_deepspeed_is_what_it_knows():
    from holdfast.plan.generate.fields import Fields

    keys = {key for name in CASES for key in Fields(json.loads(written(name, Format.DEEPSPEED)[0].text)).given}
    assert [key for key in keys if row(key) is None] == []


def test_the_script_has_deepspeeds_learning_rates(answers):
    import math

    for rates, theirs in zip(SCHEDULES, answers["schedules"], strict=True):
        scope = {"math": math}
        exec(f"def factor(step):\n    {_schedule(rates)}", scope)
        ours = [scope["factor"](step) for step in range(50)]
        assert ours == pytest.approx(theirs, abs=1e-9), rates


def test_accelerate_reads_its_yaml_as_it_was_meant(answers):
    found = iter(answers["accelerates"])
    for name, (setup, training) in CASES.items():
        meant = recipe(setup, training)
        fsdp, zero = next(found), next(found)
        assert zero["type"] == "DEEPSPEED"
        assert (zero["stage"], zero["clipping"]) == (meant.sharded, meant.clipping), name
        if name.startswith("ddp"):
            assert fsdp["type"] == "MULTI_GPU"
            continue
        assert fsdp["type"] == "FSDP"
        assert fsdp["version"] == 2
        assert fsdp["ranks"] == setup.data
        assert fsdp["reshard"] is (meant.sharded == 3), name
        assert fsdp["offload"] == ("OffloadPolicy" if meant.optimizer_on.device is Place.GPU else "CPUOffloadPolicy")
        assert fsdp["recompute"] is (setup.recompute is Recompute.FULL), name
        if setup.replicas > 1:
            assert fsdp["mesh"]["parallelism_config_dp_replicate_size"] == 2
            assert fsdp["mesh"]["parallelism_config_dp_shard_size"] == 8
