"""DeepSpeed and Accelerate parse their generated files with their own parsers."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from holdfast.plan.generate import deepspeed
from holdfast.plan.generate.fsdp2_code import _render_schedule
from holdfast.plan.generate.mapping import find_mapping
from holdfast.plan.generate.migration import ConfigFormat, write_format
from holdfast.plan.generate.recipe import (
    ComputeDtype,
    LrDecay,
    LrSchedule,
    LrWarmup,
    OptimizerValues,
    StateDevice,
    TrainingValues,
    build_recipe,
)
from holdfast.plan.setup import (
    FP32_PRECISION,
    ActivationCheckpointing,
    OffloadTarget,
    OptimizerKind,
    Precision,
    ShardingStrategy,
    TrainingSetup,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("deepspeed") is None or find_spec("accelerate") is None, reason="the frameworks"
    ),
]

BARE = Precision(compute=2, master=0, gradient=2, reduced=2, state=2)
CASES = {
    "zero1": (
        TrainingSetup(strategy=ShardingStrategy.ZERO1, data=4, micro_batch=2, accumulation=3),
        TrainingValues(),
    ),
    "zero2 offload": (
        TrainingSetup(strategy=ShardingStrategy.ZERO2, data=8, offload=OffloadTarget.OPTIMIZER),
        TrainingValues(clipping=0.0),
    ),
    "zero3 nvme": (
        TrainingSetup(
            strategy=ShardingStrategy.ZERO3,
            data=16,
            accumulation=4,
            offload=OffloadTarget.PARAMETERS,
            recompute=ActivationCheckpointing.FULL,
        ),
        TrainingValues(compute_dtype=ComputeDtype.FP16, nvme_path="/scratch"),
    ),
    "ddp fp32": (
        TrainingSetup(strategy=ShardingStrategy.DDP, data=2, precision=FP32_PRECISION),
        TrainingValues(),
    ),
    "fsdp2": (
        TrainingSetup(data=8, micro_batch=4, optimizer=OptimizerKind.MOMENTUM),
        TrainingValues(),
    ),
    "bare": (
        TrainingSetup(data=8, precision=BARE),
        TrainingValues(schedule=LrSchedule(decay=LrDecay.LINEAR, total_steps=9, warmup_steps=3)),
    ),
    "hsdp": (
        TrainingSetup(data=16, replicas=2, reshard=False),
        TrainingValues(optimizer=OptimizerValues(lr=1e-5), hosts=2),
    ),
}
SCHEDULES = [
    LrSchedule(
        decay=curve,
        warmup_steps=warmup,
        total_steps=40,
        warmup=rise,
        start=0.25,
        end=0.1 if curve is LrDecay.COSINE else 0.0,
    )
    for curve in (LrDecay.CONSTANT, LrDecay.LINEAR, LrDecay.COSINE)
    for rise in LrWarmup
    for warmup in (1, 7)
]


def generated(name, form):
    setup, training = CASES[name]
    return write_format(build_recipe(setup, training), form).files


@pytest.fixture(scope="module")
def parser_results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("configurations")
    texts = [
        (setup.data, generated(name, ConfigFormat.DEEPSPEED)[0].text)
        for name, (setup, _) in CASES.items()
    ]
    paths = []
    for name in CASES:
        for form in (ConfigFormat.ACCELERATE_FSDP2, ConfigFormat.ACCELERATE_DEEPSPEED):
            path = folder / f"{name.replace(' ', '_')}_{form}.yaml"
            path.write_text(generated(name, form)[0].text)
            paths.append(str(path))
    curves = []
    for rates in SCHEDULES:
        settings = deepspeed.deepspeed_settings(
            build_recipe(TrainingSetup(), TrainingValues(schedule=rates))
        )["scheduler"]
        curves.append((settings["type"], settings["params"], 3e-4, 50))
    requests = {"deepspeeds": [texts], "fields": [], "schedules": [curves], "accelerates": [paths]}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("framework_parsers.py")],
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_deepspeed_parses_generated_json(parser_results):
    for (name, (setup, training)), result in zip(
        CASES.items(), parser_results["deepspeeds"], strict=True
    ):
        meant = build_recipe(setup, training)
        assert result["batch"] == [setup.global_batch, setup.micro_batch, setup.accumulation], name
        assert result["stage"] == meant.sharded_states, name
        assert result["clipping"] == meant.clipping, name
        assert (result["bf16"], result["fp16"]) == (
            meant.compute_dtype is ComputeDtype.BF16,
            meant.compute_dtype is ComputeDtype.FP16,
        ), name
        assert result["away"] == [
            meant.optimizer_placement.device.value,
            meant.parameter_placement.device.value,
        ], name


def test_mapping_covers_all_deepspeed_settings(parser_results):
    assert len(parser_results["fields"]) > 80
    blocks = {"zero_optimization.offload_param", "zero_optimization.offload_optimizer"}
    assert {key for key in parser_results["fields"] if find_mapping(key) is None} == blocks


def test_written_deepspeed_keys_are_known():
    from holdfast.plan.generate.fields import ConfigReader

    keys = {
        key
        for name in CASES
        for key in ConfigReader(json.loads(generated(name, ConfigFormat.DEEPSPEED)[0].text)).values
    }
    assert [key for key in keys if find_mapping(key) is None] == []


def test_the_script_has_deepspeeds_learning_rates(parser_results):
    import math

    for rates, expected_rates in zip(SCHEDULES, parser_results["schedules"], strict=True):
        scope = {"math": math}
        exec(f"def lr_factor(step):\n    {_render_schedule(rates)}", scope)
        rates_of_script = [scope["lr_factor"](step) for step in range(50)]
        assert rates_of_script == pytest.approx(expected_rates, abs=1e-9), rates


def test_accelerate_parses_generated_yaml(parser_results):
    result = iter(parser_results["accelerates"])
    for name, (setup, training) in CASES.items():
        meant = build_recipe(setup, training)
        fsdp, zero = next(result), next(result)
        assert zero["type"] == "DEEPSPEED"
        assert (fsdp["ranks"], zero["ranks"]) == (setup.data, setup.data)
        assert zero["launcher"] == ("standard" if training.hosts > 1 else None), name
        assert (fsdp["hosts"], zero["hosts"]) == (training.hosts, training.hosts)
        assert (zero["stage"], zero["clipping"]) == (meant.sharded_states, meant.clipping), name
        if name.startswith("ddp"):
            assert fsdp["type"] == "MULTI_GPU"
            continue
        assert fsdp["type"] == "FSDP"
        assert fsdp["version"] == 2
        assert fsdp["reshard"] is (meant.sharded_states == 3), name
        assert fsdp["offload"] == (
            "OffloadPolicy"
            if meant.optimizer_placement.device is StateDevice.GPU
            else "CPUOffloadPolicy"
        )
        assert fsdp["recompute"] is (setup.recompute is ActivationCheckpointing.FULL), name
        if setup.replicas > 1:
            assert fsdp["mesh"]["parallelism_config_dp_replicate_size"] == 2
            assert fsdp["mesh"]["parallelism_config_dp_shard_size"] == 8
