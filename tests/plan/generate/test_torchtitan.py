"""Against the names in torchtitan's own source, of which torchtitan_names.json is a list with its commits."""

import json
import shlex
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings

from holdfast.plan.generate import torchtitan
from holdfast.plan.generate.recipe import Curve, Half, Rates, Recipe, Rise, Training, recipe
from holdfast.plan.setup import Recompute, Setup, Strategy
from tests.plan.cases import jobs

from .recipes import shared

NAMES = json.loads(Path(__file__).with_name("torchtitan_names.json").read_text())


def both(found):
    written = torchtitan.write(found)
    return tomllib.loads(written.files[0].text), shlex.split(written.files[1].text)


def flags(words):
    """Section and name of each flag."""
    return [word[2:].replace(".no-", ".").split(".") for word in words if word.startswith("--")]


@settings(max_examples=100, deadline=None)
@given(shared())
def test_torchtitan_has_every_name(found):
    tables, words = both(found)
    for section, values in tables.items():
        assert set(values) <= set(NAMES["toml"]["names"][section])
    assert len(flags(words)) > 15
    for section, name in flags(words):
        assert name in NAMES["flags"]["names"][section]


@settings(max_examples=100, deadline=None)
@given(jobs())
def test_degrees_and_batches_are_those_of_the_setup(job):
    _, setup, _ = job
    tables, words = both(recipe(setup))
    degrees = tables["parallelism"]
    data = degrees["data_parallel_replicate_degree"] * degrees["data_parallel_shard_degree"]
    assert data == setup.data
    assert (data * degrees["tensor_parallel_degree"] * degrees["pipeline_parallel_degree"]
            * degrees["context_parallel_degree"]) == setup.world_size  # fmt: skip
    assert tables["training"]["global_batch_size"] == setup.global_batch
    assert words[words.index("--training.num_tokens_per_train_step") + 1] == str(setup.tokens_a_step)


def test_what_it_cannot_say_is_told():
    found = torchtitan.write(recipe(Setup(data=8), Training(half=Half.FP16, model="mpt-7b")))
    assert {loss.what for loss in found.losses} == {"the model mpt-7b", "fp16"}
    slow = Training(schedule=Rates(curve=Curve.COSINE, rise=Rise.LOG, warmup_steps=5, total_steps=50))
    assert any("warms up linearly" in warning for warning in torchtitan.write(recipe(Setup(), slow)).warnings)


def test_no_clipping_does_not_mean_gradients_of_zero():
    tables, _ = both(Recipe(ranks=8, clipping=0.0))
    assert tables["training"]["max_norm"] > 1e6


@pytest.mark.parametrize("model", ["llama3-8b", "Llama3.1-70B"])
def test_a_model_that_it_has_is_named(model):
    tables, words = both(recipe(Setup(data=8, recompute=Recompute.OPERATIONS), Training(model=model)))
    assert tables["model"]["flavor"] == model.rpartition("-")[2].upper()
    assert words[1] == f"CONFIG=llama3_{model.rpartition('-')[2].lower()}"
    assert tables["activation_checkpoint"] == {"mode": "selective", "selective_ac_option": "op"}


def test_data_parallelism_alone_is_a_mesh_of_copies():
    tables, _ = both(recipe(Setup(data=8, strategy=Strategy.DDP)))
    assert tables["parallelism"]["data_parallel_replicate_degree"] == 8
