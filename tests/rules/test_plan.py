"""What is found of a planned run: what does not fit, numbers that a GPU lacks, tensor groups beyond a node."""

from __future__ import annotations

import pytest

from holdfast.findings import Level, Remedy
from holdfast.plan.hardware import parse_mixed
from holdfast.plan.memory import footprint
from holdfast.plan.models import known
from holdfast.plan.setup import Setup
from holdfast.rules.plan import Plan, judge

GIB = 1 << 30


def found(on="8 H100", memory=80.0, precision="bf16", **setup):
    clusters = parse_mixed(on)
    run = Setup(**setup)
    needs = footprint(known("llama3.1-8b"), run, int(memory * GIB))
    return list(judge(Plan(name="m", setup=run, clusters=clusters, worst=clusters[0], footprint=needs,
                           precision=precision, remedies=(Remedy(text="less"),))))  # fmt: skip


def test_what_fits_on_gpus_that_have_all_is_fine():
    assert found(data=8, sequence=2048) == []


@pytest.mark.parametrize(("memory", "level"), [(20.0, Level.ERROR), (30.0, Level.WARNING)])
def test_what_does_not_fit_is_an_error_and_what_is_tight_a_warning(memory, level):
    (claim,) = found(data=8, sequence=2048, memory=memory)
    assert (claim.code, claim.level, claim.remedies[0].text) == ("MEM001", level, "less")
    assert "optimizer" in claim.evidence[0].text


@pytest.mark.parametrize(
    ("on", "precision", "there"),
    [("8 V100", "bf16", True), ("8 V100", "fp16", False), ("8 T4", "bf16-pure", True), ("8 A100", "fp8", True),
     ("8 H100", "fp8", False), ("4 A100 + 4 V100", "bf16", True)],
)  # fmt: skip
def test_numbers_that_a_gpu_has_no_units_for(on, precision, there):
    causes = [claim.cause for claim in found(on, precision=precision, data=8, sequence=512)]
    assert ("precision-without-hardware" in causes) is there


@pytest.mark.parametrize(("tensor", "there"), [(8, True), (4, False)])
def test_tensor_groups_beyond_a_node(tensor, there):
    causes = [claim.cause for claim in found("4 x 4 A100", data=16 // tensor, tensor=tensor, sequence=512)]
    assert ("tensor-parallel-across-nodes" in causes) is there
