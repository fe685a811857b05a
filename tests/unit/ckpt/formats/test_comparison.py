"""Comparing two checkpoints: missing tensors, shapes, dtypes, values."""

from __future__ import annotations

import math

import pytest
import torch

from holdfast.ckpt.contents import CheckpointContents, CheckpointFormat, TensorShard
from holdfast.ckpt.formats import registry
from holdfast.ckpt.rules.differences import build_verdict, difference_lines, judge_differences
from holdfast.ckpt.verify.differences import ComparisonRequest, compare_checkpoints
from holdfast.core.findings import Unknown

WEIGHTS = {f"layers.{number}.up.weight": torch.randn(30, 20) for number in range(4)}
WEIGHTS |= {f"layers.{number}.up.bias": torch.randn(30) for number in range(4)}
WEIGHTS |= {
    "embed": torch.randn(9, 7).bfloat16(),
    "scale": torch.tensor(2.0),
    "count": torch.arange(4),
}


def saved(folder, name, changes=None, without=(), **more):
    model = {
        key: each for key, each in {**WEIGHTS, **(changes or {})}.items() if key not in without
    }
    path = folder / f"{name}.pt"
    torch.save({"model": model, **more}, path)
    return registry.read_checkpoint(path)


def compared(tmp_path, request=None, **other):
    return compare_checkpoints(
        saved(tmp_path, "a"), saved(tmp_path, "b", **other), request or ComparisonRequest()
    )


def finding_of(found):
    return {(line.kind, line.pattern): line for line in difference_lines(found)}


def test_identical_checkpoints(tmp_path):
    found = compared(tmp_path)
    assert found.alike
    assert judge_differences(found) == ()
    assert build_verdict(found, ()).root is None
    assert len(found.pairs) == len(WEIGHTS)


def test_missing_names_are_folded(tmp_path):
    biases = [f"layers.{number}.up.bias" for number in range(4)]
    found = compared(tmp_path, without=biases, changes={"new": torch.ones(2)})
    assert set(finding_of(found)) == {("missing", "layers.*.up.bias"), ("extra", "new")}
    assert finding_of(found)["missing", "layers.*.up.bias"].names == tuple(biases)
    (claim,) = judge_differences(found)
    assert (claim.cause, claim.level) == ("checkpoints-not-alike", "error")
    assert "4 tensors missing in the second, 1 tensor only in the second" in claim.message


def test_shapes_and_dtypes(tmp_path):
    changes = {"scale": torch.ones(1), "layers.0.up.weight": WEIGHTS["layers.0.up.weight"].half()}
    found = finding_of(compared(tmp_path, changes=changes))
    assert found["shape", "scale"].text == "[] vs [1]"
    assert found["dtype", "layers.0.up.weight"].text == "float32 vs float16, equal up to rounding"
    assert len(found) == 2


@pytest.mark.parametrize("swapped", [False, True])
def test_any_dtype_ignores_rounding(tmp_path, swapped):
    a = saved(tmp_path, "a")
    b = saved(
        tmp_path,
        "b",
        {key: each.bfloat16() for key, each in WEIGHTS.items() if each.is_floating_point()},
    )
    assert not compare_checkpoints(*((b, a) if swapped else (a, b)), ComparisonRequest()).alike
    assert compare_checkpoints(
        *((b, a) if swapped else (a, b)), ComparisonRequest(any_dtype=True)
    ).alike


def test_differences_are_quantified(tmp_path):
    name = "layers.2.up.weight"
    other = WEIGHTS[name].clone()
    other[3, 4] += 0.5
    found = compared(tmp_path, changes={name: other})
    line = finding_of(found)["values", name]
    assert (line.differ, line.elements) == (1, 600)
    assert line.max_abs == pytest.approx(0.5, rel=1e-5)
    assert line.relative == pytest.approx(0.5 / WEIGHTS[name].norm().item(), rel=1e-4)
    (pair,) = [pair for pair in found.pairs if not pair.alike]
    assert pair.difference.first == 64
    assert compare_checkpoints(
        saved(tmp_path, "a"), saved(tmp_path, "b", {name: other}), ComparisonRequest(atol=0.6)
    ).alike
    assert compare_checkpoints(
        saved(tmp_path, "a"), saved(tmp_path, "b", {name: other}), ComparisonRequest(rtol=0.1)
    ).alike
    assert compare_checkpoints(
        saved(tmp_path, "a"), saved(tmp_path, "b", {name: other}), ComparisonRequest(numbers=False)
    ).alike
    assert compare_checkpoints(
        saved(tmp_path, "a"),
        saved(tmp_path, "b", {name: other}),
        ComparisonRequest(only=("*.bias",)),
    ).alike


def test_nan_equals_only_nan(tmp_path):
    bad = WEIGHTS["embed"].clone()
    bad[0, 0] = float("nan")
    a, b = saved(tmp_path, "a", {"embed": bad}), saved(tmp_path, "b", {"embed": bad})
    assert compare_checkpoints(a, b, ComparisonRequest()).alike
    (pair,) = [pair for pair in compared(tmp_path, changes={"embed": bad}).pairs if not pair.alike]
    assert (pair.difference.differ, pair.difference.max_abs) == (1, math.inf)


def test_integers_and_complex_numbers(tmp_path):
    a = saved(tmp_path, "a", {"z": torch.tensor([1 + 1j, 2])})
    b = saved(tmp_path, "b", {"z": torch.tensor([1 + 2j, 2]), "count": torch.arange(4) * 2})
    found = finding_of(compare_checkpoints(a, b, ComparisonRequest()))
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
        torch.save(
            {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": steps}, path
        )
        return registry.read_checkpoint(path)

    a, b = trained("a", 2, 1e-3), trained("b", 3, 1e-2)
    assert compare_checkpoints(a, a, ComparisonRequest()).alike
    found = compare_checkpoints(a, b, ComparisonRequest())
    assert found.values["step"] == (2, 3)
    assert found.values["lr of weight"] == (1e-3, 1e-2)
    assert ("values", "exp_avg of weight") in finding_of(found)
    assert ("model", "weight") in {
        pair.key for pair in compare_checkpoints(a, b, ComparisonRequest(optimizer=False)).pairs
    }
    assert {
        pair.key[0] for pair in compare_checkpoints(a, b, ComparisonRequest(optimizer=False)).pairs
    } == {"model"}
    bare = compare_checkpoints(a, saved(tmp_path, "c"), ComparisonRequest())
    assert len(bare.apart) == 1
    assert "only in" in bare.apart[0]


def test_tied_weights_appear_under_both_names(tmp_path):
    weight = torch.randn(5, 4)
    tied = saved(tmp_path, "a", {"head": weight, "embed": weight})
    once = saved(tmp_path, "b", {"embed": weight})
    copied = saved(tmp_path, "c", {"head": weight.clone(), "embed": weight})
    assert tied.ties
    assert compare_checkpoints(tied, copied, ComparisonRequest()).alike
    assert compare_checkpoints(tied, once, ComparisonRequest()).alike
    assert compare_checkpoints(once, tied, ComparisonRequest()).alike


def test_unreadable_tensors_are_not_equal(tmp_path):
    a, b = saved(tmp_path, "a"), saved(tmp_path, "b")
    gone = {**b.tensors, "scale": replaced(b.tensors["scale"])}
    broken = CheckpointContents(format=CheckpointFormat.TORCH, root=b.root, tensors=gone)
    found = compare_checkpoints(a, broken, ComparisonRequest())
    assert not found.alike
    (pair,) = [pair for pair in found.pairs if isinstance(pair.difference, Unknown)]
    assert pair.key == ("model", "scale")
    (claim,) = judge_differences(found)
    assert claim.level == "unknown"


def replaced(tensor):
    shard = TensorShard(file="", offset=1 << 40, shape=(), start=())
    return type(tensor)(name=tensor.name, dtype=tensor.dtype, shape=(), shards=(shard,))
