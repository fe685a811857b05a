"""Wrappers are removed, maps are applied in order, and collisions are refused."""

import json

import pytest

from holdfast.ckpt.contents import (
    CheckpointContents,
    CheckpointFormat,
    OptimizerState,
    ParamGroup,
    Tensor,
)
from holdfast.ckpt.convert.names import parse_name_maps, rename_contents
from holdfast.core.errors import InvalidValue, MissingFile


def contents(*names, ties=(), optimizer=(), **more):
    tensors = {name: Tensor(name=name, dtype="float32", shape=(0,), shards=()) for name in names}
    state = {
        name: {"exp_avg": Tensor(name=name, dtype="float32", shape=(0,), shards=())}
        for name in optimizer
    }
    found = OptimizerState(
        tensors=state,
        numbers={name: {"step": 3} for name in optimizer},
        groups=(ParamGroup(params=tuple(optimizer), options={}),),
    )
    return CheckpointContents(
        format=CheckpointFormat.TORCH,
        root="/",
        tensors=tensors,
        ties=dict(ties),
        optimizer=found if optimizer else None,
        **more,
    )


def of(*names, maps=(), **more):
    own = [each for text in maps for each in parse_name_maps(text)]
    return tuple(rename_contents(contents(*names), own, **more).tensors)


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("module.a.weight", "a.weight"),
        ("module.module.a.weight", "a.weight"),
        ("_orig_mod.module.a.weight", "a.weight"),
        ("module._orig_mod.a.weight", "a.weight"),
        ("_fsdp_wrapped_module.blocks.0._fsdp_wrapped_module.weight", "blocks.0.weight"),
        ("blocks.0._checkpoint_wrapped_module._orig_mod.weight", "blocks.0.weight"),
        ("a.module.weight", "a.module.weight"),
        ("a._orig_model.weight", "a._orig_model.weight"),
    ],
)
def test_wrappers_are_removed(name, bare):
    assert of(name) == (bare,)
    assert of(name, keep_wrappers=True) == (name,)


def test_module_prefix_is_kept_unless_common():
    assert of("module.a", "head.b") == ("module.a", "head.b")
    assert of("module", "module.a") == ("module", "module.a")


def test_all_sections_are_renamed():
    found = contents(
        "module.a",
        "module.b",
        ties={"module.c": "module.a"}.items(),
        optimizer=("module.a",),
        frozen=frozenset({"module.b"}),
        buffers=frozenset({"module.b"}),
    )
    found = rename_contents(found, parse_name_maps("a=x.a"))
    assert found.tensors["x.a"].name == "x.a"
    assert found.ties == {"c": "x.a"}
    assert found.frozen == found.buffers == {"b"}
    assert list(found.optimizer.tensors) == ["x.a"]
    assert found.optimizer.numbers == {"x.a": {"step": 3}}
    assert found.optimizer.groups[0].params == ("x.a",)


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("model=", ("a.w", "models.w")),
        ("model.=", ("a.w", "models.w")),
        ("model=net", ("net.a.w", "models.w")),
        ("model.a.w=model.b", ("model.b", "models.w")),
        ("=top", ("top.model.a.w", "top.models.w")),
        (r"s/^model\.(\w)\./m.\1./", ("m.a.w", "models.w")),
        ("s|model.|x|", ("xa.w", "x.w")),
    ],
)
def test_maps(text, after):
    assert of("model.a.w", "models.w", maps=[text]) == after


def test_maps_are_applied_in_order():
    assert of("a.w", maps=["a=b", "b=c"]) == ("c.w",)


def test_map_file(tmp_path):
    lines = tmp_path / "maps"
    lines.write_text("# old=new\n\na=b\ns/w$/weight/\n")
    assert of("a.w", maps=[f"@{lines}"]) == ("b.weight",)
    table = tmp_path / "maps.json"
    table.write_text(json.dumps({"a": "b", "b.w": "b.v"}))
    assert of("a.w", maps=[f"@{table}"]) == ("b.v",)
    with pytest.raises(MissingFile):
        parse_name_maps(f"@{tmp_path / 'none'}")
    table.write_text('{"a": 3}')
    with pytest.raises(InvalidValue, match="not a JSON object of names"):
        parse_name_maps(f"@{table}")


@pytest.mark.parametrize(
    ("names", "maps", "message"),
    [
        (
            ("a.w", "b.w"),
            ["a=b"],
            "b.w and a.w would both be named b.w|a.w and b.w would both be named b.w",
        ),
        (("_orig_mod.a", "a"), [], "_orig_mod.a and a would both be named a"),
        (("a.w",), ["c=b"], "'c=b' matches no name; the closest name is a.w"),
        (("a.w",), ["a.w="], "a.w would be named ''"),
        (("a.w",), ["s/a//"], "a.w would be named '.w'"),
        (("a.w",), ["nonsense"], "'nonsense' is not a map"),
        (("a.w",), ["s/(/b/"], "invalid regular expression"),
        (("a.w",), [r"s/a/\2/"], "invalid regular expression"),
    ],
)
def test_invalid_maps_are_refused(names, maps, message):
    with pytest.raises(InvalidValue, match=message):
        of(*names, maps=maps)


def test_aliases_equal_to_their_name_are_dropped():
    found = rename_contents(contents("a", ties={"_orig_mod.a": "a"}.items()))
    assert (tuple(found.tensors), found.ties) == (("a",), {})
    with pytest.raises(InvalidValue, match=r"b and _orig_mod\.b would both be named b"):
        rename_contents(contents("a", "b", ties={"_orig_mod.b": "a"}.items()))
