"""Merging tensor- and pipeline-parallel ranks of DeepSpeed checkpoints."""

import numpy as np
import pytest

from holdfast.ckpt.formats.deepspeed import zero as deepspeed
from holdfast.ckpt.tensor_blocks import TensorReader
from holdfast.ckpt.verify.coverage import measure_coverage
from tests.unit.ckpt.formats.zero_files import numbers, write

#: Shards of tensor-parallel rank 0; those of rank 1 are equal.
SHAPES = (
    {"column.weight": (3, 4), "row.weight": (5, 3)},
    {"column.bias": (3,), "norm.weight": (4,)},
)
INFO = {
    "tp_replicated_parameter_patterns": ["norm", "frozen"],
    "parameter_with_row_parallelism_patterns": [r"row\.weight$"],
}


def two(folder, stage=2, world=2, **more):
    write(folder, stage, world, SHAPES, 0, **more)
    return write(folder, stage, world, SHAPES, 1, **more)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_shards_are_merged_by_patterns(tmp_path, stage, world):
    folder = two(tmp_path / "tag", stage, world, universal_checkpoint_info=INFO)
    found = deepspeed.read_contents(folder)
    assert (found.problems, found.world_size) == ((), 2 * world)
    column, row, bias = (
        numbers(name, shape).numpy() for name, shape in (*SHAPES[0].items(), ("column.bias", (3,)))
    )
    moment = numbers("row.weight", (5, 3), "exp_avg").numpy()
    with TensorReader(folder) as reader:
        assert np.array_equal(
            reader.read_tensor(found.tensors["column.weight"]), np.concatenate([column, column])
        )
        assert np.array_equal(
            reader.read_tensor(found.tensors["row.weight"]), np.concatenate([row, row], 1)
        )
        assert np.array_equal(
            reader.read_tensor(found.tensors["column.bias"]), np.concatenate([bias, bias])
        )
        assert reader.read_tensor(found.tensors["norm.weight"]).shape == (4,)
        state = found.optimizer.tensors["row.weight"]["exp_avg"]
        assert np.array_equal(reader.read_tensor(state), np.concatenate([moment, moment], 1))
        if stage < 3:
            assert reader.read_tensor(found.halves["row.weight"]).shape == (5, 6)
    assert all(measure_coverage(each).missing == 0 for each in found.tensors.values())
    assert [group.params for group in found.optimizer.groups] == [tuple(each) for each in SHAPES]


def test_without_patterns_shards_are_not_merged(tmp_path):
    found = deepspeed.read_contents(two(tmp_path / "tag"))
    assert "column.weight" not in found.tensors
    assert "column.weight" not in found.optimizer.tensors
    (problem,) = found.problems
    assert problem.kind == "unreadable"
    assert "does not record how to merge them" in problem.why


def test_pipeline_stages(tmp_path):
    degrees = {"checkpoint_parallel_dimensions": {"pp_degree": 2, "tp_degree": 1}}
    write(tmp_path / "tag", 1, 2, ({"0.weight": (3, 4), "tied": (2,)},), 0, **degrees)
    write(tmp_path / "tag", 1, 2, ({"7.weight": (2, 4), "tied": (2,)},), 1, **degrees)
    found = deepspeed.read_contents(tmp_path / "tag")
    assert found.problems == ()
    assert {"0.weight", "7.weight", "tied"} <= found.tensors.keys()
    assert measure_coverage(found.tensors["tied"]).twice == 2
    assert found.optimizer.groups[0].params == ("0.weight", "tied", "7.weight")


def test_missing_tensor_parallel_rank(tmp_path):
    degrees = {
        "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 3},
        "universal_checkpoint_info": INFO,
    }
    found = deepspeed.read_contents(two(tmp_path / "tag", **degrees))
    assert {problem.file for problem in found.problems if problem.kind == "missing"} >= {
        "mp_rank_02_model_states.pt"
    }
    assert found.tensors.keys() == {"norm.weight", "frozen"}  # the others would be too small


def test_one_of_two_tensor_parallel_ranks(tmp_path):
    folder = write(tmp_path / "tag", 2, 2, SHAPES, 0, mp_world_size=2)
    found = deepspeed.read_contents(folder)
    assert not found.tensors
    assert {problem.kind for problem in found.problems} == {"missing", "unreadable"}


@pytest.mark.parametrize("pattern", ["(a+)+$", "x" * 300, 7, None])
def test_expensive_patterns_are_rejected(tmp_path, pattern):
    info = {"parameter_with_row_parallelism_patterns": [pattern]}
    deepspeed.read_contents(two(tmp_path / "tag", universal_checkpoint_info=info))


def test_unsupported_patterns(tmp_path):
    info = {**INFO, "parameter_with_sub_params": [{"patterns": ["column"]}]}
    found = deepspeed.read_contents(two(tmp_path / "tag", universal_checkpoint_info=info))
    assert [problem.kind for problem in found.problems] == ["unreadable"]
