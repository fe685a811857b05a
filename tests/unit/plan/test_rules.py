"""Findings about a planned run: too little memory, unsupported dtypes, tensor groups across nodes."""

from __future__ import annotations

import pytest

from holdfast.core.findings import Level, Remedy
from holdfast.plan.hardware import parse_clusters
from holdfast.plan.memory.estimate import estimate_memory
from holdfast.plan.models import get_known_model
from holdfast.plan.rules import PlanFacts, judge_plan
from holdfast.plan.setup import TrainingSetup

GIB = 1 << 30


def judge(on="8 H100", memory=80.0, precision="bf16", **setup):
    clusters = parse_clusters(on)
    run = TrainingSetup(**setup)
    estimate = estimate_memory(get_known_model("llama3.1-8b"), run, int(memory * GIB))
    return list(
        judge_plan(
            PlanFacts(
                name="m",
                setup=run,
                clusters=clusters,
                worst_cluster=clusters[0],
                memory=estimate,
                precision=precision,
                remedies=(Remedy(text="less"),),
            )
        )
    )


def test_fitting_plan_has_no_findings():
    assert judge(data=8, sequence=2048) == []


@pytest.mark.parametrize(("memory", "level"), [(20.0, Level.ERROR), (30.0, Level.WARNING)])
def test_run_that_does_not_fit_is_an_error_and_a_tight_one_a_warning(memory, level):
    (finding,) = judge(data=8, sequence=2048, memory=memory)
    assert (finding.code, finding.level, finding.remedies[0].text) == ("MEM001", level, "less")
    assert "optimizer" in finding.evidence[0].text


@pytest.mark.parametrize(
    ("on", "precision", "is_reported"),
    [
        ("8 V100", "bf16", True),
        ("8 V100", "fp16", False),
        ("8 T4", "bf16-pure", True),
        ("8 A100", "fp8", True),
        ("8 H100", "fp8", False),
        ("4 A100 + 4 V100", "bf16", True),
    ],
)
def test_unsupported_dtype_is_rejected(on, precision, is_reported):
    causes = [finding.cause for finding in judge(on, precision=precision, data=8, sequence=512)]
    assert ("precision-without-hardware" in causes) is is_reported


@pytest.mark.parametrize(("tensor", "is_reported"), [(8, True), (4, False)])
def test_tensor_groups_across_nodes_are_reported(tensor, is_reported):
    causes = [
        finding.cause
        for finding in judge("4 x 4 A100", data=16 // tensor, tensor=tensor, sequence=512)
    ]
    assert ("tensor-parallel-across-nodes" in causes) is is_reported
