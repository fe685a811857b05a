"""Wrappers come off, maps are applied in order, and what collides is refused by name."""

import json

import pytest

from holdfast.actions.conversion.names import parsed, renamed
from holdfast.errors import BadValue, MissingFile
from holdfast.facts.checkpoints.contents import Contents, Format, Group, Optimizer, Tensor


def contents(*names, ties=(), optimizer=(), **more):
    tensors = {name: Tensor(name=name, dtype="float32", shape=(0,), pieces=()) for name in names}
    state = {name: {"exp_avg": Tensor(name=name, dtype="float32", shape=(0,), pieces=())} for name in optimizer}
    found = Optimizer(
        tensors=state,
        numbers={name: {"step": 3} for name in optimizer},
        groups=(Group(params=tuple(optimizer), options={}),),
    )
    return Contents(
        format=Format.TORCH, root="/", tensors=tensors, ties=dict(ties), optimizer=found if optimizer else None, **more
    )


def of(*names, maps=(), **more):
    own = [each for text in maps for each in parsed(text)]
    return tuple(renamed(contents(*names), own, **more).tensors)


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
def test_wrappers_come_off(name, bare):
    assert of(name) == (bare,)
    assert of(name, keep_wrappers=True) == (name,)


def test_module_stays_where_not_every_name_begins_with_it():
    assert of("module.a", "head.b") == ("module.a", "head.b")
    assert of("module", "module.a") == ("module", "module.a")


def test_everything_that_has_a_name_gets_the_new_one():
    found = contents(
        "module.a", "module.b", ties={"module.c": "module.a"}.items(), optimizer=("module.a",),
        frozen=frozenset({"module.b"}), buffers=frozenset({"module.b"}),
    )  # fmt: skip
    found = renamed(found, parsed("a=x.a"))
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


def test_maps_follow_each_other():
    assert of("a.w", maps=["a=b", "b=c"]) == ("c.w",)


def test_maps_of_a_file(tmp_path):
    lines = tmp_path / "maps"
    lines.write_text("# old=new\n\na=b\ns/w$/weight/\n")
    assert of("a.w", maps=[f"@{lines}"]) == ("b.weight",)
    table = tmp_path / "maps.json"
    table.write_text(json.dumps({"a": "b", "b.w": "b.v"}))
    assert of("a.w", maps=[f"@{table}"]) == ("b.v",)
    with pytest.raises(MissingFile):
        parsed(f"@{tmp_path / 'none'}")
    table.write_text('{"a": 3}')
    with pytest.raises(BadValue, match="no JSON object of names"):
        parsed(f"@{table}")


@pytest.mark.parametrize(
    ("names", "maps", "said"),
    [
        (("a.w", "b.w"), ["a=b"], "b.w and a.w would both be called b.w|a.w and b.w would both be called b.w"),
        (("_orig_mod.a", "a"), [], "_orig_mod.a and a would both be called a"),
        (("a.w",), ["c=b"], "'c=b' changes no name; names are such as a.w"),
        (("a.w",), ["a.w="], "a.w would be called ''"),
        (("a.w",), ["s/a//"], "a.w would be called '.w'"),
        (("a.w",), ["nonsense"], "'nonsense' is no map"),
        (("a.w",), ["s/(/b/"], "is no regular expression"),
        (("a.w",), [r"s/a/\2/"], "is no regular expression"),
    ],
)
def test_what_cannot_be_is_refused(names, maps, said):
    with pytest.raises(BadValue, match=said):
        of(*names, maps=maps)


def test_second_names_that_fall_together_with_the_first_are_no_second_names():
    found = renamed(contents("a", ties={"_orig_mod.a": "a"}.items()))
    assert (tuple(found.tensors), found.ties) == (("a",), {})
    with pytest.raises(BadValue, match=r"b and _orig_mod\.b would both be called b"):
        renamed(contents("a", "b", ties={"_orig_mod.b": "a"}.items()))
