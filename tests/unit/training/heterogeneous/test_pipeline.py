"""A pipeline of stages with unequal ranks trains exactly as one process on the global batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast
from holdfast.core.errors import InvalidValue
from holdfast.training.heterogeneous.config import parse_heterogeneous
from holdfast.training.heterogeneous.pipeline import HeterogeneousPipeline, Piece, overlaps
from tests.unit.training.collectives.ranks import run

STEPS, BATCH, FEATURES = 3, 12, 6
#: Rank 0 holds both stages for a part of the batch; ranks 1 to 4 divide the rest unequally.
TWO_STAGES = """
batch: 12
meeting: step
precision: fp32
groups:
  - {name: whole, ranks: 0, micro_batch: [3, 2], stages: [0, 1]}
  - {name: fast, ranks: 1, micro_batch: 7, stages: 0}
  - {name: slow, ranks: 2-3, micro_batch: [1, 2], stages: 1}
  - {name: slower, ranks: 4, micro_batch: 1, stages: 1}
"""
#: Three stages of 1, 2 and 2 ranks; the middle one computes in bf16.
THREE_STAGES = """
batch: 12
meeting: step
groups:
  - {name: first, ranks: 4, micro_batch: 4, accumulation: 3, precision: fp32, stages: 0}
  - {name: middle, ranks: 0-1, micro_batch: 6, precision: PRECISION, stages: 1}
  - {name: last, ranks: 2, micro_batch: [5, 4], precision: fp32, stages: 2}
  - {name: rest, ranks: 3, micro_batch: 3, precision: fp32, stages: 2}
"""


def build(stage: int) -> nn.Module:
    """Return a stage; its weights differ between calls of different ranks before the pipeline."""
    last = nn.Linear(8, 1) if stage == 2 else nn.Linear(8, 8)
    return nn.Sequential(nn.Linear(FEATURES, 8) if stage == 0 else nn.Tanh(), nn.Tanh(), last)


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(BATCH, FEATURES, generator=generator), torch.randn(BATCH, generator=generator))
        for _ in range(STEPS)
    ]


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.mean(1) - target).square().mean()


def train_pipeline(rank: int, text: str) -> tuple[list[float], dict[int, list[torch.Tensor]]]:
    """Return the losses, and the weights of each stage of this rank before and after training."""
    torch.manual_seed(rank)
    config = parse_heterogeneous(text, "heterogeneous.yaml")
    pipeline = HeterogeneousPipeline(config, build, loss, timeout=60)
    before = {
        stage: [p.detach().clone() for p in m.parameters()] for stage, m in pipeline.stages.items()
    }
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.1)
    losses = []
    for inputs, targets in batches():
        optimizer.zero_grad()
        losses.append(
            pipeline.step(
                [inputs[each.start : each.stop] for each in pipeline.input_samples],
                [targets[each.start : each.stop] for each in pipeline.target_samples],
            )
        )
        optimizer.step()
    after = {stage: [p.detach() for p in m.parameters()] for stage, m in pipeline.stages.items()}
    return losses, {stage: [*before[stage], *after[stage]] for stage in before}


def train_alone(stages: list[nn.Module]) -> list[float]:
    model = nn.Sequential(*stages)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for inputs, targets in batches():
        optimizer.zero_grad()
        value = loss(model(inputs), targets)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "tolerance"),
    [
        pytest.param(TWO_STAGES, 1e-6, id="two stages"),
        pytest.param(THREE_STAGES.replace("PRECISION", "fp32"), 1e-6, id="three stages"),
        pytest.param(THREE_STAGES.replace("PRECISION", "bf16"), 2e-2, id="middle stage in bf16"),
    ],
)
def test_it_trains_as_one_process(text: str, tolerance: float, tmp_path: Path) -> None:
    results = run(5, train_pipeline, tmp_path, text)
    count = parse_heterogeneous(text, "").stages
    weights: dict[int, list[list[torch.Tensor]]] = {}
    assert not [each for each in results if isinstance(each, Exception)]
    for losses, of_stages in results:
        assert losses == results[0][0]
        for stage, values in of_stages.items():
            weights.setdefault(stage, []).append(values)
    stages = [build(stage) for stage in range(count)]
    for stage, module in enumerate(stages):
        with torch.no_grad():
            for own, start in zip(module.parameters(), weights[stage][0], strict=False):
                own.copy_(start)
    alone = train_alone(stages)
    assert results[0][0] == pytest.approx(alone, rel=tolerance)
    for stage, module in enumerate(stages):
        trained = [p.detach() for p in module.parameters()]
        for values in weights[stage]:
            for own, expected in zip(values[len(trained) :], trained, strict=True):
                torch.testing.assert_close(own, expected, rtol=tolerance, atol=tolerance)


def refusals(_: int) -> list[str]:
    errors = []
    for text in (
        TWO_STAGES,
        "batch: 2\ngroups: [{name: a, ranks: 0-1, micro_batch: 1, dtype: fp16}]",
    ):
        try:
            HeterogeneousPipeline(parse_heterogeneous(text, ""), build, loss)
        except InvalidValue as error:
            errors.append(str(error))
    pipeline = HeterogeneousPipeline(
        parse_heterogeneous("batch: 2\ngroups: [{name: a, ranks: 0-1, micro_batch: 1}]", ""),
        build,
        loss,
    )
    try:
        pipeline.step([torch.ones(2, FEATURES)], [torch.ones(1)])
    except InvalidValue as error:
        errors.append(str(error))
    return errors


@pytest.mark.slow
def test_what_does_not_match_is_refused(tmp_path: Path) -> None:
    for other_world, fp16, sizes in run(2, refusals, tmp_path):
        assert "it is for 5 ranks, but the job has 2" in other_world
        assert "fp16 needs one loss scale" in fp16
        assert "micro-batches of [1] samples, not of [2]" in sizes


def test_samples_are_sent_to_the_ranks_that_hold_them() -> None:
    config = parse_heterogeneous(TWO_STAGES, "")
    assert config.stages == 2
    assert config.spans(0) == {0: (range(3), range(3, 5)), 1: (range(5, 12),)}
    assert overlaps(range(5, 12), config.spans(1)) == [
        Piece(2, range(5, 6)),
        Piece(2, range(6, 8)),
        Piece(3, range(8, 9)),
        Piece(3, range(9, 11)),
        Piece(4, range(11, 12)),
    ]
    assert sum(len(piece.samples) for piece in overlaps(range(3), config.spans(1))) == 3


def test_it_is_public() -> None:
    assert holdfast.HeterogeneousPipeline is HeterogeneousPipeline
