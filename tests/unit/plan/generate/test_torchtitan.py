"""Compare with names in torchtitan's source; torchtitan_names.json lists them with commits."""

import json
import shlex
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings

from holdfast.plan.generate import torchtitan
from holdfast.plan.generate.recipe import (
    ComputeDtype,
    LrDecay,
    LrSchedule,
    LrWarmup,
    Recipe,
    TrainingValues,
    build_recipe,
)
from holdfast.plan.setup import ActivationCheckpointing, ShardingStrategy, TrainingSetup
from tests.hypothesis_profiles import examples
from tests.unit.plan.setup_strategies import jobs

from .recipe_strategies import common_recipes

NAMES = json.loads(Path(__file__).with_name("torchtitan_names.json").read_text())


def tables_and_arguments(result):
    written = torchtitan.write_torchtitan(result)
    return tomllib.loads(written.files[0].text), shlex.split(written.files[1].text)


def flags(arguments):
    """Return section and name of each flag."""
    return [word[2:].replace(".no-", ".").split(".") for word in arguments if word.startswith("--")]


@settings(max_examples=examples(100))
@given(common_recipes())
def test_torchtitan_has_every_name(result):
    tables, arguments = tables_and_arguments(result)
    for section, values in tables.items():
        assert set(values) <= set(NAMES["toml"]["names"][section])
    assert len(flags(arguments)) > 15
    for section, name in flags(arguments):
        assert name in NAMES["flags"]["names"][section]


@settings(max_examples=examples(100))
@given(jobs())
def test_degrees_and_batches_match_the_setup(job):
    _, setup, _ = job
    tables, arguments = tables_and_arguments(build_recipe(setup))
    degrees = tables["parallelism"]
    data = degrees["data_parallel_replicate_degree"] * degrees["data_parallel_shard_degree"]
    assert data == setup.data
    assert (
        data
        * degrees["tensor_parallel_degree"]
        * degrees["pipeline_parallel_degree"]
        * degrees["context_parallel_degree"]
    ) == setup.world_size
    assert tables["training"]["global_batch_size"] == setup.global_batch
    assert arguments[arguments.index("--training.num_tokens_per_train_step") + 1] == str(
        setup.tokens_per_step
    )


def test_unmapped_settings_are_reported():
    result = torchtitan.write_torchtitan(
        build_recipe(
            TrainingSetup(data=8), TrainingValues(compute_dtype=ComputeDtype.FP16, model="mpt-7b")
        )
    )
    assert {loss.setting for loss in result.unmapped} == {"the model mpt-7b", "fp16"}
    slow = TrainingValues(
        schedule=LrSchedule(
            decay=LrDecay.COSINE, warmup=LrWarmup.LOG, warmup_steps=5, total_steps=50
        )
    )
    assert any(
        "warms up linearly" in warning
        for warning in torchtitan.write_torchtitan(build_recipe(TrainingSetup(), slow)).warnings
    )


def test_disabled_clipping_does_not_clip_gradients_to_zero():
    tables, _ = tables_and_arguments(Recipe(ranks=8, clipping=0.0))
    assert tables["training"]["max_norm"] > 1e6


@pytest.mark.parametrize("model", ["llama3-8b", "Llama3.1-70B"])
def test_known_torchtitan_model_is_selected(model):
    tables, arguments = tables_and_arguments(
        build_recipe(
            TrainingSetup(data=8, recompute=ActivationCheckpointing.OPERATIONS),
            TrainingValues(model=model),
        )
    )
    assert tables["model"]["flavor"] == model.rpartition("-")[2].upper()
    assert arguments[0] == "NGPU=8"
    assert arguments[2] == f"CONFIG=llama3_{model.rpartition('-')[2].lower()}"
    assert tables["activation_checkpoint"] == {"mode": "selective", "selective_ac_option": "op"}


def test_data_parallelism_without_sharding_is_a_mesh_of_replicas():
    tables, _ = tables_and_arguments(
        build_recipe(TrainingSetup(data=8, strategy=ShardingStrategy.DDP))
    )
    assert tables["parallelism"]["data_parallel_replicate_degree"] == 8
