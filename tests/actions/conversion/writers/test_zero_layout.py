"""Where ZeRO puts what: flat buffers of the ranks, groups of the optimizer, what it cannot keep."""

import math
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.actions.conversion.files import Run, size_of
from holdfast.actions.conversion.options import Options
from holdfast.actions.conversion.writers.zero import flat, stage2, stage3, universal
from holdfast.actions.conversion.writers.zero.groups import FlatGroup, lay
from holdfast.errors import BadValue
from holdfast.facts.checkpoints import formats
from holdfast.facts.checkpoints.contents import Format, Group, Tensor
from holdfast.facts.checkpoints.pieces import Reader
from tests.actions.conversion.streamed import neutral, stream
from tests.actions.conversion.writers.trained import UNKNOWN, trained
from tests.saved.model import STEPS, model


def tensor_of(name, shape):
    """A tensor that no file has."""
    return Tensor(name=name, dtype="float32", shape=shape, pieces=())


SHAPES = st.lists(st.lists(st.integers(1, 9), max_size=3).map(tuple), min_size=1, max_size=9)


def elements(parts):
    """(parameter, element) of each place of a buffer; None for padding."""
    for part in parts:
        if isinstance(part, Run):
            yield from ((part.tensor.name, at) for at in range(part.start, part.stop))
        else:
            yield from (None for _ in range(part.size // 4))


@given(SHAPES, st.integers(1, 7))
def test_in_stages_1_and_2_the_ranks_have_equal_parts_of_the_group(shapes, ranks):
    params = tuple(tensor_of(str(at), shape) for at, shape in enumerate(shapes))
    group = FlatGroup(params=params, options={})
    every = [(each.name, at) for each in params for at in range(each.numel)]
    size = math.ceil(len(every) / (2 * ranks)) * 2
    padded = [list(elements(flat.part(group, ranks, rank, padded=True))) for rank in range(ranks)]
    assert [len(each) for each in padded] == [size] * ranks
    assert sum(padded, []) == every + [None] * (size * ranks - len(every))  # noqa: RUF017 - small
    for rank in range(ranks):
        lean = flat.part(group, ranks, rank, padded=False)
        assert size_of(lean) == 4 * flat.lean(group, ranks, rank)
        assert list(elements(lean)) == [each for each in padded[rank] if each is not None]
        for param, first, last, place in flat.addresses(group, ranks, rank):
            assert padded[rank][place] == (param.name, first)
            assert padded[rank][place + last - first - 1] == (param.name, last - 1)


@given(SHAPES, st.integers(1, 7))
def test_in_stage_3_the_ranks_have_equal_parts_of_each_parameter(shapes, ranks):
    params = tuple(tensor_of(str(at), shape) for at, shape in enumerate(shapes))
    found = [list(elements(flat.share_of(params, ranks, rank))) for rank in range(ranks)]
    at = 0
    for each in params:
        size = math.ceil(each.numel / ranks)
        whole = [place for rank in found for place in rank[at : at + size]]
        assert whole == [(each.name, n) for n in range(each.numel)] + [None] * (size * ranks - each.numel)
        at += size
    assert {len(each) for each in found} == {at}


def test_sub_groups_of_stage_3_end_where_they_are_full():
    params = tuple(tensor_of(str(at), (size,)) for at, size in enumerate((6, 6, 4, 9, 1)))
    group = FlatGroup(params=params, options={})
    assert list(flat.sub_groups(group, 1)) == [params]
    was, flat.SUB_GROUP = flat.SUB_GROUP, 10
    try:
        assert [[each.name for each in found] for found in flat.sub_groups(group, 1)] == [["0", "1"], ["2", "3"], ["4"]]
        assert [[each.name for each in found] for found in flat.sub_groups(group, 3)] == [["0", "1", "2", "3", "4"]]
    finally:
        flat.SUB_GROUP = was


# ---- which tensors are divided


@pytest.fixture
def contents(tmp_path):
    return trained(tmp_path)[0]


def replaced(contents, **fields):
    return msgspec.structs.replace(contents, **fields)


def with_optimizer(contents, **fields):
    return replaced(contents, optimizer=msgspec.structs.replace(contents.optimizer, **fields))


def names(tensors):
    return [each.name for each in tensors]


def test_groups_are_those_of_the_optimizer_in_its_order(contents):
    turned = tuple(
        Group(params=tuple(reversed(each.params)), options=each.options) for each in reversed(contents.optimizer.groups)
    )
    laid = lay(with_optimizer(contents, groups=turned), Options())
    assert [names(each.params) for each in laid.groups] == [list(each.params) for each in turned]
    assert [each.options["weight_decay"] for each in laid.groups] == [0.0, 0.1]
    assert names(laid.frozen) == ["frozen.weight", "frozen.bias"]
    assert names(laid.buffers) == ["scale", "seen"]
    assert laid.losses == ()


def test_frozen_ones_and_second_names_in_a_group_are_not_divided_twice(contents):
    first = contents.optimizer.groups[0]
    more = Group(params=("frozen.weight", "head.weight", *first.params), options=first.options)
    laid = lay(with_optimizer(contents, groups=(more, contents.optimizer.groups[1])), Options())
    assert names(laid.groups[0].params) == list(first.params)


def test_without_an_optimizer_all_parameters_make_a_group(contents):
    for one in (replaced(contents, optimizer=None), contents):
        laid = lay(one, Options(optimizer=False))
        assert len(laid.groups) == 1
        expected = [name for name in contents.tensors if name not in contents.frozen | contents.buffers]
        assert names(laid.groups[0].params) == expected
        assert not laid.groups[0].states
    written = stage2.write(replaced(contents, optimizer=None), Options())
    assert any("load_optimizer_states=False" in each for each in written.losses)


def test_what_the_source_does_not_say_is_guessed_and_told(contents):
    laid = lay(replaced(contents, frozen=frozenset(), buffers=frozenset()), Options())
    assert names(laid.frozen) == ["frozen.weight", "frozen.bias"]
    assert names(laid.buffers) == ["scale", "seen"]
    assert laid.losses == (
        "The source does not say what these are; they were taken for frozen parameters: frozen.weight, frozen.bias.",
    )


def test_a_parameter_that_the_model_lacks_is_told(contents):
    first = contents.optimizer.groups[0]
    more = Group(params=(*first.params, "gone.weight"), options=first.options)
    laid = lay(with_optimizer(contents, groups=(more,)), Options())
    assert laid.losses[0] == "The optimizer has parameters that the model has not; they are not in it: gone.weight."


def test_a_group_has_one_step_and_the_largest_is_told(contents):
    numbers = {**contents.optimizer.numbers, "embed.weight": {"step": 1.0}}
    laid = lay(with_optimizer(contents, numbers=numbers), Options())
    assert laid.groups[0].numbers == {"step": STEPS}
    assert laid.losses[0].startswith("step of blocks.0.mix.weight is 1.0, of others 3.0: ZeRO keeps one")


def test_states_of_another_shape_and_options_that_are_no_values_are_told(contents):
    tensors = {name: dict(each) for name, each in contents.optimizer.tensors.items()}
    tensors["embed.weight"]["row"] = tensor_of("embed.weight", (37,))
    groups = tuple(
        Group(params=each.params, options={**each.options, "hook": object()}) for each in contents.optimizer.groups
    )
    laid = lay(with_optimizer(contents, tensors=tensors, groups=groups), Options())
    assert laid.losses[:2] == (
        "row of embed.weight is not in it: ZeRO keeps states of the parameter's own shape.",
        "Options of the optimizer that are no plain values are not in it: hook.",
    )


def test_float64_is_told(tmp_path):
    found = neutral(tmp_path, model().double(), step=1)
    assert any("rounded to float32" in each for each in lay(found, Options()).losses)


# ---- files


def test_names_of_files_follow_the_ranks_and_the_dtype(contents):
    def paths(writer, **options):
        return [each.path for each in writer.write(contents, Options(**options)).files]

    assert paths(stage2, ranks=2) == [
        "global_step3/mp_rank_00_model_states.pt", "global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt", "latest",
    ]  # fmt: skip
    assert paths(stage3, dtype="bfloat16", tag="last") == [
        "last/zero_pp_rank_0_mp_rank_00_model_states.pt",
        "last/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "latest",
    ]
    assert "global_step3_universal/zero/blocks.0.up.bias/exp_avg.pt" in paths(universal)


def test_masters_are_fp32_whatever_the_model_is(contents, tmp_path):
    stream(stage2.write(contents, Options(dtype="bfloat16")), contents, tmp_path / "to")
    found = torch.load(tmp_path / "to" / "global_step3" / "mp_rank_00_model_states.pt", weights_only=True)
    assert (
        found["module"]["embed.weight"].dtype == found["frozen_param_fragments"]["frozen.bias"].dtype == torch.bfloat16
    )
    assert found["module"]["seen"].dtype == torch.int64
    assert found["module"]["embed.weight"].data_ptr() == found["module"]["head.weight"].data_ptr()


@pytest.mark.parametrize("tag", ["..", "a/b", "a\nb"])
def test_a_tag_is_the_name_of_one_folder(contents, tag):
    with pytest.raises(BadValue, match="the name of one folder"):
        stage3.write(contents, Options(tag=tag))


def test_there_is_at_least_one_rank(contents):
    with pytest.raises(BadValue, match="one or more"):
        stage2.write(contents, Options(ranks=0))


@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out"])
def test_a_parameter_does_not_lead_out_of_the_folder(contents, name):
    tensors = {name if each == "embed.weight" else each: tensor for each, tensor in contents.tensors.items()}
    hostile = {key: msgspec.structs.replace(each, name=key) for key, each in tensors.items()}
    with pytest.raises(BadValue, match="makes a folder of it"):
        universal.write(replaced(contents, tensors=hostile, ties={}, optimizer=None), Options())


def test_without_a_step_the_optimizers_counts(contents):
    assert stage2.write(replaced(contents, step=UNKNOWN), Options()).files[0].path.startswith("global_step3/")


@pytest.mark.parametrize("writer", [stage2, stage3, universal], ids=["zero2", "zero3", "universal"])
def test_a_parameter_without_dimensions_comes_back(tmp_path, writer):
    module = torch.nn.Linear(3, 3)
    module.register_parameter("scale", torch.nn.Parameter(torch.tensor(2.5)))
    optimizer = torch.optim.AdamW(module.parameters())
    (module(torch.ones(3)).sum() * module.scale).backward()
    optimizer.step()
    source = neutral(tmp_path, module, optimizer, step=1)
    stream(writer.write(source, Options(ranks=2)), source, tmp_path / "to")
    found = formats.read(tmp_path / "to")
    assert found.tensors["scale"].shape == found.optimizer.tensors["scale"]["exp_avg"].shape == ()
    with Reader(Path(found.root)) as reader:
        assert reader.whole(found.tensors["scale"]) == module.scale.item()


def test_a_source_of_deepspeed_without_a_scheduler_has_lost_nothing(contents):
    plain = replaced(contents, values={})
    assert stage2.write(replaced(plain, format=Format.ZERO3), Options()).losses == ()
    assert any("load_lr_scheduler_states=False" in each for each in stage2.write(plain, Options()).losses)
