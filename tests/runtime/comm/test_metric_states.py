"""torchmetrics' metrics give what its own compute() gives, and keep their own states."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from holdfast import comm
from tests.runtime.comm.ranks import run

torchmetrics = pytest.importorskip("torchmetrics")

SIZE = 3


def collection() -> Any:
    """Sums, means, extremes, lists, states shared by a compute group, metrics within metrics, and a composed one."""
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
    )  # fmt: skip
    from torchmetrics.wrappers import MinMaxMetric

    class Averaged(Metric):
        def __init__(self) -> None:
            super().__init__()
            self.add_state("level", torch.zeros(2), dist_reduce_fx="mean")
            self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

        def update(self, prediction: torch.Tensor, target: torch.Tensor) -> None:
            self.level = self.level + torch.stack([prediction.sum(), target.sum()])
            self.count = self.count + target.numel()

        def compute(self) -> torch.Tensor:
            return self.level / self.count

    def of_predictions(metric: type[Metric]) -> Metric:
        class Fed(metric):  # type: ignore[misc, valid-type]
            def update(self, prediction: torch.Tensor, target: torch.Tensor) -> None:  # noqa: ARG002
                super().update(prediction)

        return Fed()

    return MetricCollection({
        "mse": MeanSquaredError(), "rmse": MeanSquaredError(squared=False), "r2": R2Score(), "averaged": Averaged(),
        "bounds": MinMaxMetric(MeanSquaredError()), "twice": MeanSquaredError() + MeanSquaredError(),
        **{each.__name__: of_predictions(each) for each in (SumMetric, MeanMetric, MaxMetric, MinMetric, CatMetric)},
    })  # fmt: skip


def plain(values: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: value.tolist() for name, value in values.items()}


def both(rank: int, batches: list[int]) -> Any:
    """What torchmetrics gives, and we; after further batches again, which shows that own states are kept."""
    warnings.simplefilter("ignore")  # of torchmetrics, on the rank that saw no batch
    generator = torch.Generator().manual_seed(rank)
    theirs, ours = collection(), collection()
    told: list[Any] = []
    for count in (batches[rank], 2):
        for _ in range(count):
            # Quarters: every order of adding them gives the same bits, as three ranks have one each.
            prediction, target = torch.randint(-64, 64, (2, 5), generator=generator) / 4
            theirs.update(prediction, target)
            ours.update(prediction, target)
        told.append(plain(theirs.compute()))
        with comm.synced(ours, timeout=20):
            told.append(plain(ours.compute()))
    local = {metric: metric._update_count for metric in ours.values()}
    assert not any(metric._is_synced or not metric._to_sync for metric in local)
    return told


@pytest.mark.parametrize("batches", [[1, 1, 1], [3, 1, 2]])
def test_the_same_as_torchmetrics_to_the_bit(batches: list[int], tmp_path: Path) -> None:
    told = run(SIZE, both, tmp_path, batches)
    assert told[0] == told[1] == told[2]
    first, ours_first, second, ours_second = told[0]
    assert ours_first == first
    assert ours_second == second != first


def counts(rank: int) -> Any:
    """A rank without a batch, any floats on two ranks, a second computing in the block, and how many calls it takes."""
    warnings.simplefilter("ignore")
    from torchmetrics import MeanMetric, MetricCollection

    group = dist.new_group([0, 1])
    if rank == 2:
        return None
    metrics = MetricCollection({f"m{at}": MeanMetric(compute_with_cache=False) for at in range(8)})
    if rank == 0:
        for batch in torch.rand(5, 7, generator=torch.Generator().manual_seed(1)):
            metrics.update(batch)
    theirs = {name: metric.clone() for name, metric in metrics.items()}
    for metric in theirs.values():
        metric.process_group = group
    expected = {name: metric.compute().item() for name, metric in theirs.items()}
    from holdfast.runtime.comm.groups import state_of

    before = state_of(group).calls
    with comm.synced(metrics, group, timeout=20):
        told = [{name: value.item() for name, value in metrics.compute().items()} for _ in range(2)]
    return told == [expected, expected], state_of(group).calls - before, metrics["m0"].weight.item()


def test_one_collective_for_all_states_of_one_operation(tmp_path: Path) -> None:
    assert run(SIZE, counts, tmp_path) == [(True, 1, 35.0), (True, 1, 0.0), None]


def fails_within(_: int) -> Any:
    from torchmetrics import SumMetric

    metric = SumMetric()
    metric.update(1.0)
    with pytest.raises(ZeroDivisionError), comm.synced(metric, timeout=20):
        raise ZeroDivisionError
    metric.update(1.0)
    return metric.compute().item()


def test_an_error_in_the_block_leaves_the_metric_as_it_was(tmp_path: Path) -> None:
    assert run(2, fails_within, tmp_path) == [4.0, 4.0]


def test_without_a_process_group_nothing_is_reduced() -> None:
    from torchmetrics import SumMetric

    metric = SumMetric()
    metric.update(2.0)
    with comm.synced(metric):
        assert metric.compute().item() == 2.0
