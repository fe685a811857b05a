"""comm.synced matches torchmetrics' compute() and restores states."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from holdfast import comm
from tests.unit.training.collectives.ranks import run

pytestmark = pytest.mark.skipif(find_spec("torchmetrics") is None, reason="needs torchmetrics")

SIZE = 3
#: 2 s of CPU time per rank otherwise.
IMPORTS = ("torchmetrics",)


def collection() -> Any:
    """Return sums, means, extremes, lists, compute groups, nested metrics, and a composed one."""
    from torchmetrics import (
        CatMetric,
        MaxMetric,
        MeanMetric,
        MeanSquaredError,
        Metric,
        MetricCollection,
        MinMetric,
        R2Score,
        SumMetric,
    )
    from torchmetrics.wrappers import MinMaxMetric

    class Averaged(Metric):
        def __init__(self) -> None:
            super().__init__()
            self.add_state("level", torch.zeros(2), dist_reduce_fx="mean")
            self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

        def update(self, prediction: torch.Tensor, target: torch.Tensor) -> None:  # noqa: ARG002, RUF100
            self.level = self.level + torch.stack([prediction.sum(), target.sum()])
            self.count = self.count + target.numel()

        def compute(self) -> torch.Tensor:
            return self.level / self.count

    def of_predictions(metric: type[Metric]) -> Metric:
        class PredictionMetric(metric):  # type: ignore[misc, valid-type]
            def update(self, prediction: torch.Tensor, target: torch.Tensor) -> None:  # noqa: ARG002
                super().update(prediction)

        return PredictionMetric()

    return MetricCollection(
        {
            "mse": MeanSquaredError(),
            "rmse": MeanSquaredError(squared=False),
            "r2": R2Score(),
            "averaged": Averaged(),
            "bounds": MinMaxMetric(MeanSquaredError()),
            "twice": MeanSquaredError() + MeanSquaredError(),
            **{
                each.__name__: of_predictions(each)
                for each in (SumMetric, MeanMetric, MaxMetric, MinMetric, CatMetric)
            },
        }
    )


def plain(values: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: value.tolist() for name, value in values.items()}


def compute_both(rank: int, batches: list[int]) -> Any:
    """Return results of torchmetrics and holdfast, twice, to show that local states are restored."""
    warnings.simplefilter("ignore")  # torchmetrics warns on the rank without a batch
    generator = torch.Generator().manual_seed(rank)
    reference, synced_metrics = collection(), collection()
    results: list[Any] = []
    for count in (batches[rank], 2):
        for _ in range(count):
            # Quarters are added exactly in any order.
            prediction, target = torch.randint(-64, 64, (2, 5), generator=generator) / 4
            reference.update(prediction, target)
            synced_metrics.update(prediction, target)
        results.append(plain(reference.compute()))
        with comm.synced(synced_metrics, timeout=20):
            results.append(plain(synced_metrics.compute()))
    local = {metric: metric._update_count for metric in synced_metrics.values()}
    assert not any(metric._is_synced or not metric._to_sync for metric in local)
    return results


@pytest.mark.parametrize("batches", [[1, 1, 1], [3, 1, 2]])
def test_results_equal_torchmetrics_to_the_bit(batches: list[int], tmp_path: Path) -> None:
    results = run(SIZE, compute_both, tmp_path, batches, imports=IMPORTS)
    assert results[0] == results[1] == results[2]
    first, ours_first, second, ours_second = results[0]
    assert ours_first == first
    assert ours_second == second != first


def count_calls(rank: int) -> Any:
    """One rank has no batch; compute twice in the block, and count the collectives."""
    warnings.simplefilter("ignore")
    from torchmetrics import MeanMetric, MetricCollection

    group = dist.new_group([0, 1])
    if rank == 2:
        return None
    metrics = MetricCollection({f"m{at}": MeanMetric(compute_with_cache=False) for at in range(8)})
    if rank == 0:
        for batch in torch.rand(5, 7, generator=torch.Generator().manual_seed(1)):
            metrics.update(batch)
    reference = {name: metric.clone() for name, metric in metrics.items()}
    for metric in reference.values():
        metric.process_group = group
    expected = {name: metric.compute().item() for name, metric in reference.items()}
    from holdfast.training.collectives.groups.group_info import state_of

    before = state_of(group).calls
    with comm.synced(metrics, group, timeout=20):
        results = [
            {name: value.item() for name, value in metrics.compute().items()} for _ in range(2)
        ]
    return (
        results == [expected, expected],
        state_of(group).calls - before,
        metrics["m0"].weight.item(),
    )


def test_one_collective_per_operation(tmp_path: Path) -> None:
    assert run(SIZE, count_calls, tmp_path, imports=IMPORTS) == [
        (True, 1, 35.0),
        (True, 1, 0.0),
        None,
    ]


def raise_in_block(_: int) -> Any:
    from torchmetrics import SumMetric

    metric = SumMetric()
    metric.update(1.0)
    with pytest.raises(ZeroDivisionError), comm.synced(metric, timeout=20):
        raise ZeroDivisionError
    metric.update(1.0)
    return metric.compute().item()


def test_error_in_the_block_restores_the_metric(tmp_path: Path) -> None:
    assert run(2, raise_in_block, tmp_path, imports=IMPORTS) == [4.0, 4.0]


def test_without_a_process_group_nothing_is_reduced() -> None:
    from torchmetrics import SumMetric

    metric = SumMetric()
    metric.update(2.0)
    with comm.synced(metric):
        assert metric.compute().item() == 2.0
