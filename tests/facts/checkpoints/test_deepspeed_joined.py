"""Tensor- and pipeline-parallel ranks of DeepSpeed's checkpoints."""

import numpy as np
import pytest

from holdfast.facts.checkpoints.deepspeed import zero as deepspeed
from holdfast.facts.checkpoints.examining.coverage import cover
from holdfast.facts.checkpoints.pieces import Reader
from tests.facts.checkpoints.zero_files import numbers, write

#: The parts of tensor-parallel rank 0; rank 1 has the same.
SHAPES = ({"column.weight": (3, 4), "row.weight": (5, 3)}, {"column.bias": (3,), "norm.weight": (4,)})
INFO = {
    "tp_replicated_parameter_patterns": ["norm", "frozen"],
    "parameter_with_row_parallelism_patterns": [r"row\.weight$"],
}


def two(folder, stage=2, world=2, **more):
    write(folder, stage, world, SHAPES, 0, **more)
    return write(folder, stage, world, SHAPES, 1, **more)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_parts_are_put_together_by_the_patterns(tmp_path, stage, world):
    folder = two(tmp_path / "tag", stage, world, universal_checkpoint_info=INFO)
    found = deepspeed.read(folder)
    assert (found.gaps, found.world_size) == ((), 2 * world)
    column, row, bias = (numbers(name, shape).numpy() for name, shape in (*SHAPES[0].items(), ("column.bias", (3,))))
    moment = numbers("row.weight", (5, 3), "exp_avg").numpy()
    with Reader(folder) as reader:
        assert np.array_equal(reader.whole(found.tensors["column.weight"]), np.concatenate([column, column]))
        assert np.array_equal(reader.whole(found.tensors["row.weight"]), np.concatenate([row, row], 1))
        assert np.array_equal(reader.whole(found.tensors["column.bias"]), np.concatenate([bias, bias]))
        assert reader.whole(found.tensors["norm.weight"]).shape == (4,)
        state = found.optimizer.tensors["row.weight"]["exp_avg"]
        assert np.array_equal(reader.whole(state), np.concatenate([moment, moment], 1))
        if stage < 3:
            assert reader.whole(found.halves["row.weight"]).shape == (5, 6)
    assert all(cover(each).missing == 0 for each in found.tensors.values())
    assert [group.params for group in found.optimizer.groups] == [tuple(each) for each in SHAPES]


def test_without_patterns_parts_are_not_guessed_at(tmp_path):
    found = deepspeed.read(two(tmp_path / "tag"))
    assert "column.weight" not in found.tensors
    assert "column.weight" not in found.optimizer.tensors
    (gap,) = found.gaps
    assert gap.kind == "unreadable"
    assert "how their parts belong together is not in it" in gap.why


def test_stages_of_a_pipeline_have_other_names(tmp_path):
    degrees = {"checkpoint_parallel_dimensions": {"pp_degree": 2, "tp_degree": 1}}
    write(tmp_path / "tag", 1, 2, ({"0.weight": (3, 4), "tied": (2,)},), 0, **degrees)
    write(tmp_path / "tag", 1, 2, ({"7.weight": (2, 4), "tied": (2,)},), 1, **degrees)
    found = deepspeed.read(tmp_path / "tag")
    assert found.gaps == ()
    assert {"0.weight", "7.weight", "tied"} <= found.tensors.keys()
    assert cover(found.tensors["tied"]).twice == 2
    assert found.optimizer.groups[0].params == ("0.weight", "tied", "7.weight")


def test_a_tensor_parallel_rank_that_is_missing(tmp_path):
    degrees = {"checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 3}, "universal_checkpoint_info": INFO}
    found = deepspeed.read(two(tmp_path / "tag", **degrees))
    assert {gap.file for gap in found.gaps if gap.kind == "missing"} >= {"mp_rank_02_model_states.pt"}
    assert found.tensors.keys() == {"norm.weight", "frozen"}  # the others would be too small


def test_one_of_two_tensor_parallel_ranks(tmp_path):
    folder = write(tmp_path / "tag", 2, 2, SHAPES, 0, mp_world_size=2)
    found = deepspeed.read(folder)
    assert not found.tensors
    assert {gap.kind for gap in found.gaps} == {"missing", "unreadable"}


@pytest.mark.parametrize("pattern", ["(a+)+$", "x" * 300, 7, None])
def test_patterns_that_may_take_for_ever_are_not_tried(tmp_path, pattern):
    info = {"parameter_with_row_parallelism_patterns": [pattern]}
    deepspeed.read(two(tmp_path / "tag", universal_checkpoint_info=info))


def test_kinds_of_parts_that_are_not_known_here(tmp_path):
    info = {**INFO, "parameter_with_sub_params": [{"patterns": ["column"]}]}
    found = deepspeed.read(two(tmp_path / "tag", universal_checkpoint_info=info))
    assert [gap.kind for gap in found.gaps] == ["unreadable"]
