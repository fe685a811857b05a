"""ZeRO layout: flat buffers per rank, optimizer groups, and what ZeRO cannot store."""

import math
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ckpt.contents import CheckpointFormat, ParamGroup, Tensor
from holdfast.ckpt.convert.files import TensorRun, total_size
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.writers.zero import flat, stage2, stage3, universal
from holdfast.ckpt.convert.writers.zero.groups import FlatGroup, build_zero_layout
from holdfast.ckpt.formats import registry
from holdfast.ckpt.tensor_blocks import TensorReader
from holdfast.core.errors import InvalidValue
from tests.golden.checkpoints.model import STEPS, model
from tests.unit.ckpt.convert.streamed import neutral, stream
from tests.unit.ckpt.convert.writers.trained import UNKNOWN, trained


def tensor_of(name, shape):
    """Return a tensor that is in no file."""
    return Tensor(name=name, dtype="float32", shape=shape, shards=())


SHAPES = st.lists(st.lists(st.integers(1, 9), max_size=3).map(tuple), min_size=1, max_size=9)


def elements(parts):
    """Return (parameter, element) per buffer position; None for padding."""
    for part in parts:
        if isinstance(part, TensorRun):
            yield from ((part.tensor.name, at) for at in range(part.start, part.stop))
        else:
            yield from (None for _ in range(part.size // 4))


@given(SHAPES, st.integers(1, 7))
def test_stages_1_and_2_split_groups_equally(shapes, ranks):
    params = tuple(tensor_of(str(at), shape) for at, shape in enumerate(shapes))
    group = FlatGroup(params=params, options={})
    every = [(each.name, at) for each in params for at in range(each.numel)]
    size = math.ceil(len(every) / (2 * ranks)) * 2
    padded = [
        list(elements(flat.partition_parts(group, ranks, rank, padded=True)))
        for rank in range(ranks)
    ]
    assert [len(each) for each in padded] == [size] * ranks
    assert sum(padded, []) == every + [None] * (size * ranks - len(every))  # noqa: RUF017 - small
    for rank in range(ranks):
        lean = flat.partition_parts(group, ranks, rank, padded=False)
        assert total_size(lean) == 4 * flat.unpadded_elements(group, ranks, rank)
        assert list(elements(lean)) == [each for each in padded[rank] if each is not None]
        for param, first, last, place in flat.param_addresses(group, ranks, rank):
            assert padded[rank][place] == (param.name, first)
            assert padded[rank][place + last - first - 1] == (param.name, last - 1)


@given(SHAPES, st.integers(1, 7))
def test_stage_3_splits_parameters_equally(shapes, ranks):
    params = tuple(tensor_of(str(at), shape) for at, shape in enumerate(shapes))
    found = [list(elements(flat.stage3_parts(params, ranks, rank))) for rank in range(ranks)]
    at = 0
    for each in params:
        size = math.ceil(each.numel / ranks)
        whole = [place for rank in found for place in rank[at : at + size]]
        assert whole == [(each.name, n) for n in range(each.numel)] + [None] * (
            size * ranks - each.numel
        )
        at += size
    assert {len(each) for each in found} == {at}


def test_stage_3_sub_group_size():
    params = tuple(tensor_of(str(at), (size,)) for at, size in enumerate((6, 6, 4, 9, 1)))
    group = FlatGroup(params=params, options={})
    assert list(flat.sub_groups(group, 1)) == [params]
    was, flat.SUB_GROUP = flat.SUB_GROUP, 10
    try:
        assert [[each.name for each in found] for found in flat.sub_groups(group, 1)] == [
            ["0", "1"],
            ["2", "3"],
            ["4"],
        ]
        assert [[each.name for each in found] for found in flat.sub_groups(group, 3)] == [
            ["0", "1", "2", "3", "4"]
        ]
    finally:
        flat.SUB_GROUP = was


# ---- tensors that are partitioned


@pytest.fixture
def contents(tmp_path):
    return trained(tmp_path)[0]


def replaced(contents, **fields):
    return msgspec.structs.replace(contents, **fields)


def with_optimizer(contents, **fields):
    return replaced(contents, optimizer=msgspec.structs.replace(contents.optimizer, **fields))


def names(tensors):
    return [each.name for each in tensors]


def test_groups_follow_the_optimizer(contents):
    reversed_groups = tuple(
        ParamGroup(params=tuple(reversed(each.params)), options=each.options)
        for each in reversed(contents.optimizer.groups)
    )
    layout = build_zero_layout(with_optimizer(contents, groups=reversed_groups), ConvertOptions())
    assert [names(each.params) for each in layout.groups] == [
        list(each.params) for each in reversed_groups
    ]
    assert [each.options["weight_decay"] for each in layout.groups] == [0.0, 0.1]
    assert names(layout.frozen) == ["frozen.weight", "frozen.bias"]
    assert names(layout.buffers) == ["scale", "seen"]
    assert layout.losses == ()


def test_frozen_and_tied_parameters_are_stored_once(contents):
    first = contents.optimizer.groups[0]
    more = ParamGroup(params=("frozen.weight", "head.weight", *first.params), options=first.options)
    layout = build_zero_layout(
        with_optimizer(contents, groups=(more, contents.optimizer.groups[1])), ConvertOptions()
    )
    assert names(layout.groups[0].params) == list(first.params)


def test_without_optimizer_one_group(contents):
    for one in (replaced(contents, optimizer=None), contents):
        layout = build_zero_layout(one, ConvertOptions(optimizer=False))
        assert len(layout.groups) == 1
        expected = [
            name for name in contents.tensors if name not in contents.frozen | contents.buffers
        ]
        assert names(layout.groups[0].params) == expected
        assert not layout.groups[0].states
    written = stage2.write(replaced(contents, optimizer=None), ConvertOptions())
    assert any("load_optimizer_states=False" in each for each in written.losses)


def test_assumed_frozen_parameters_are_reported(contents):
    layout = build_zero_layout(
        replaced(contents, frozen=frozenset(), buffers=frozenset()), ConvertOptions()
    )
    assert names(layout.frozen) == ["frozen.weight", "frozen.bias"]
    assert names(layout.buffers) == ["scale", "seen"]
    assert layout.losses == (
        "Assumed to be frozen parameters, because the source does not say: frozen.weight, frozen.bias.",
    )


def test_parameter_missing_from_the_model_is_reported(contents):
    first = contents.optimizer.groups[0]
    more = ParamGroup(params=(*first.params, "gone.weight"), options=first.options)
    layout = build_zero_layout(with_optimizer(contents, groups=(more,)), ConvertOptions())
    assert (
        layout.losses[0]
        == "Optimizer parameters missing from the model were not written: gone.weight."
    )


def test_different_steps_in_a_group_are_reported(contents):
    numbers = {**contents.optimizer.numbers, "embed.weight": {"step": 1.0}}
    layout = build_zero_layout(with_optimizer(contents, numbers=numbers), ConvertOptions())
    assert layout.groups[0].numbers == {"step": STEPS}
    assert layout.losses[0].startswith(
        "step of blocks.0.mix.weight is 1.0, of others 3.0: ZeRO stores one"
    )


def test_unsupported_states_and_options_are_reported(contents):
    tensors = {name: dict(each) for name, each in contents.optimizer.tensors.items()}
    tensors["embed.weight"]["row"] = tensor_of("embed.weight", (37,))
    groups = tuple(
        ParamGroup(params=each.params, options={**each.options, "hook": object()})
        for each in contents.optimizer.groups
    )
    layout = build_zero_layout(
        with_optimizer(contents, tensors=tensors, groups=groups), ConvertOptions()
    )
    assert layout.losses[:2] == (
        "row of embed.weight was not written: ZeRO only stores states of the parameter's shape.",
        "Optimizer options that are not plain values were not written: hook.",
    )


def test_float64_is_reported(tmp_path):
    found = neutral(tmp_path, model().double(), step=1)
    assert any(
        "rounded to float32" in each for each in build_zero_layout(found, ConvertOptions()).losses
    )


# ---- files


def test_file_names(contents):
    def paths(writer, **options):
        return [each.path for each in writer.write(contents, ConvertOptions(**options)).files]

    assert paths(stage2, ranks=2) == [
        "global_step3/mp_rank_00_model_states.pt",
        "global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt",
        "latest",
    ]
    assert paths(stage3, dtype="bfloat16", tag="last") == [
        "last/zero_pp_rank_0_mp_rank_00_model_states.pt",
        "last/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "latest",
    ]
    assert "global_step3_universal/zero/blocks.0.up.bias/exp_avg.pt" in paths(universal)


def test_master_weights_are_fp32(contents, tmp_path):
    stream(stage2.write(contents, ConvertOptions(dtype="bfloat16")), contents, tmp_path / "to")
    found = torch.load(
        tmp_path / "to" / "global_step3" / "mp_rank_00_model_states.pt", weights_only=True
    )
    assert (
        found["module"]["embed.weight"].dtype
        == found["frozen_param_fragments"]["frozen.bias"].dtype
        == torch.bfloat16
    )
    assert found["module"]["seen"].dtype == torch.int64
    assert found["module"]["embed.weight"].data_ptr() == found["module"]["head.weight"].data_ptr()


@pytest.mark.parametrize("tag", ["..", "a/b", "a\nb"])
def test_invalid_tag(contents, tag):
    with pytest.raises(InvalidValue, match="a valid folder name"):
        stage3.write(contents, ConvertOptions(tag=tag))


def test_zero_ranks_are_refused(contents):
    with pytest.raises(InvalidValue, match="at least one"):
        stage2.write(contents, ConvertOptions(ranks=0))


@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out"])
def test_parameter_name_outside_the_folder(contents, name):
    tensors = {
        name if each == "embed.weight" else each: tensor
        for each, tensor in contents.tensors.items()
    }
    hostile = {key: msgspec.structs.replace(each, name=key) for key, each in tensors.items()}
    with pytest.raises(InvalidValue, match="as a folder name"):
        universal.write(
            replaced(contents, tensors=hostile, ties={}, optimizer=None), ConvertOptions()
        )


def test_step_is_taken_from_the_optimizer(contents):
    assert (
        stage2.write(replaced(contents, step=UNKNOWN), ConvertOptions())
        .files[0]
        .path.startswith("global_step3/")
    )


@pytest.mark.parametrize("writer", [stage2, stage3, universal], ids=["zero2", "zero3", "universal"])
def test_scalar_parameter(tmp_path, writer):
    module = torch.nn.Linear(3, 3)
    module.register_parameter("scale", torch.nn.Parameter(torch.tensor(2.5)))
    optimizer = torch.optim.AdamW(module.parameters())
    (module(torch.ones(3)).sum() * module.scale).backward()
    optimizer.step()
    source = neutral(tmp_path, module, optimizer, step=1)
    stream(writer.write(source, ConvertOptions(ranks=2)), source, tmp_path / "to")
    found = registry.read_checkpoint(tmp_path / "to")
    assert found.tensors["scale"].shape == found.optimizer.tensors["scale"]["exp_avg"].shape == ()
    with TensorReader(Path(found.root)) as reader:
        assert reader.read_tensor(found.tensors["scale"]) == module.scale.item()


def test_deepspeed_source_without_scheduler_has_no_loss(contents):
    plain = replaced(contents, values={})
    assert (
        stage2.write(replaced(plain, format=CheckpointFormat.ZERO3), ConvertOptions()).losses == ()
    )
    assert any(
        "load_lr_scheduler_states=False" in each
        for each in stage2.write(plain, ConvertOptions()).losses
    )
