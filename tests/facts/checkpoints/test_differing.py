"""Two checkpoints held against each other: what one of them lacks, other shapes and dtypes, other numbers."""

from __future__ import annotations

import math

import pytest
import torch

from holdfast.facts.checkpoints import formats
from holdfast.facts.checkpoints.contents import Contents, Format, Piece
from holdfast.facts.checkpoints.examining.differing import Asked, differences
from holdfast.findings import Unknown
from holdfast.rules.checkpoints.compared import judge, lines, verdict

WEIGHTS = {f"layers.{number}.up.weight": torch.randn(30, 20) for number in range(4)}
WEIGHTS |= {f"layers.{number}.up.bias": torch.randn(30) for number in range(4)}
WEIGHTS |= {"embed": torch.randn(9, 7).bfloat16(), "scale": torch.tensor(2.0), "count": torch.arange(4)}


def saved(folder, name, changes=None, without=(), **more):
    model = {key: each for key, each in {**WEIGHTS, **(changes or {})}.items() if key not in without}
    path = folder / f"{name}.pt"
    torch.save({"model": model, **more}, path)
    return formats.read(path)


def compared(tmp_path, asked=None, **other):
    return differences(saved(tmp_path, "a"), saved(tmp_path, "b", **other), asked or Asked())


def told(found):
    return {(line.kind, line.pattern): line for line in lines(found)}


def test_the_same_is_alike(tmp_path):
    found = compared(tmp_path)
    assert found.alike
    assert judge(found) == ()
    assert verdict(found, ()).root is None
    assert len(found.pairs) == len(WEIGHTS)


def test_names_that_one_of_them_lacks_are_one_line_for_all_layers(tmp_path):
    biases = [f"layers.{number}.up.bias" for number in range(4)]
    found = compared(tmp_path, without=biases, changes={"new": torch.ones(2)})
    assert set(told(found)) == {("missing", "layers.*.up.bias"), ("extra", "new")}
    assert told(found)["missing", "layers.*.up.bias"].names == tuple(biases)
    (claim,) = judge(found)
    assert (claim.cause, claim.level) == ("checkpoints-not-alike", "error")
    assert "4 tensors missing in the second, 1 tensor in the second alone" in claim.message


def test_shapes_and_dtypes(tmp_path):
    changes = {"scale": torch.ones(1), "layers.0.up.weight": WEIGHTS["layers.0.up.weight"].half()}
    found = told(compared(tmp_path, changes=changes))
    assert found["shape", "scale"].text == "[] and [1]"
    assert found["dtype", "layers.0.up.weight"].text == "float32 and float16, the same but for rounding"
    assert len(found) == 2


@pytest.mark.parametrize("turned", [False, True])
def test_rounding_to_another_dtype_may_count_as_alike(tmp_path, turned):
    a = saved(tmp_path, "a")
    b = saved(tmp_path, "b", {key: each.bfloat16() for key, each in WEIGHTS.items() if each.is_floating_point()})
    assert not differences(*((b, a) if turned else (a, b)), Asked()).alike
    assert differences(*((b, a) if turned else (a, b)), Asked(any_dtype=True)).alike


def test_numbers_are_told_by_how_much(tmp_path):
    name = "layers.2.up.weight"
    other = WEIGHTS[name].clone()
    other[3, 4] += 0.5
    found = compared(tmp_path, changes={name: other})
    line = told(found)["values", name]
    assert (line.differ, line.elements) == (1, 600)
    assert line.max_abs == pytest.approx(0.5, rel=1e-5)
    assert line.relative == pytest.approx(0.5 / WEIGHTS[name].norm().item(), rel=1e-4)
    (pair,) = [pair for pair in found.pairs if not pair.alike]
    assert pair.difference.first == 64
    assert differences(saved(tmp_path, "a"), saved(tmp_path, "b", {name: other}), Asked(atol=0.6)).alike
    assert differences(saved(tmp_path, "a"), saved(tmp_path, "b", {name: other}), Asked(rtol=0.1)).alike
    assert differences(saved(tmp_path, "a"), saved(tmp_path, "b", {name: other}), Asked(numbers=False)).alike
    assert differences(saved(tmp_path, "a"), saved(tmp_path, "b", {name: other}), Asked(only=("*.bias",))).alike


def test_nan_is_the_same_as_nan_and_as_nothing_else(tmp_path):
    bad = WEIGHTS["embed"].clone()
    bad[0, 0] = float("nan")
    a, b = saved(tmp_path, "a", {"embed": bad}), saved(tmp_path, "b", {"embed": bad})
    assert differences(a, b, Asked()).alike
    (pair,) = [pair for pair in compared(tmp_path, changes={"embed": bad}).pairs if not pair.alike]
    assert (pair.difference.differ, pair.difference.max_abs) == (1, math.inf)


def test_integers_and_complex_numbers(tmp_path):
    a = saved(tmp_path, "a", {"z": torch.tensor([1 + 1j, 2])})
    b = saved(tmp_path, "b", {"z": torch.tensor([1 + 2j, 2]), "count": torch.arange(4) * 2})
    found = told(differences(a, b, Asked()))
    assert found["values", "z"].max_abs == 1
    assert found["values", "count"].max_abs == 3


def test_optimizers_and_steps(tmp_path):
    def trained(name, steps, rate):
        net = torch.nn.Linear(3, 2)
        with torch.no_grad():
            net.weight.fill_(1), net.bias.fill_(1)
        optimizer = torch.optim.AdamW(net.parameters(), lr=rate)
        for _ in range(steps):
            net(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        path = tmp_path / f"{name}.pt"
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": steps}, path)
        return formats.read(path)

    a, b = trained("a", 2, 1e-3), trained("b", 3, 1e-2)
    assert differences(a, a, Asked()).alike
    found = differences(a, b, Asked())
    assert found.values["step"] == (2, 3)
    assert found.values["lr of weight"] == (1e-3, 1e-2)
    assert ("values", "exp_avg of weight") in told(found)
    assert ("model", "weight") in {pair.key for pair in differences(a, b, Asked(optimizer=False)).pairs}
    assert {pair.key[0] for pair in differences(a, b, Asked(optimizer=False)).pairs} == {"model"}
    bare = differences(a, saved(tmp_path, "c"), Asked())
    assert len(bare.apart) == 1
    assert "alone holds" in bare.apart[0]


def test_tied_weights_are_there_under_both_names(tmp_path):
    weight = torch.randn(5, 4)
    tied = saved(tmp_path, "a", {"head": weight, "embed": weight})
    once = saved(tmp_path, "b", {"embed": weight})
    copied = saved(tmp_path, "c", {"head": weight.clone(), "embed": weight})
    assert tied.ties
    assert differences(tied, copied, Asked()).alike
    assert differences(tied, once, Asked()).alike
    assert differences(once, tied, Asked()).alike


def test_what_cannot_be_read_is_not_called_alike(tmp_path):
    a, b = saved(tmp_path, "a"), saved(tmp_path, "b")
    gone = {**b.tensors, "scale": replaced(b.tensors["scale"])}
    broken = Contents(format=Format.TORCH, root=b.root, tensors=gone)
    found = differences(a, broken, Asked())
    assert not found.alike
    (pair,) = [pair for pair in found.pairs if isinstance(pair.difference, Unknown)]
    assert pair.key == ("model", "scale")
    (claim,) = judge(found)
    assert claim.level == "unknown"


def replaced(tensor):
    piece = Piece(file="", offset=1 << 40, shape=(), start=())
    return type(tensor)(name=tensor.name, dtype=tensor.dtype, shape=(), pieces=(piece,))
