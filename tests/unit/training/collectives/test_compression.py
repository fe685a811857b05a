"""Compressed gradients in DDP and FSDP2 on gloo: compressed, close to exact ones, and trainable."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from holdfast.core.errors import InvalidValue
from holdfast.training.collectives.compression import (
    CompressedReduceScatter,
    CompressionTiming,
    compress,
    measure_link,
)
from tests.forked_programs import RunningProgram
from tests.unit.training.collectives.ranks import run

pytestmark = pytest.mark.slow


def network(width: int = 48) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Linear(width, 4)
    )


def gradients(model: torch.nn.Module, rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    model(torch.randn(32, 16, generator=generator)).square().mean().backward()
    return [
        getattr(p.grad, "full_tensor", lambda p=p: p.grad)().clone() for p in model.parameters()
    ]


def trains(model: torch.nn.Module, rank: int, steps: int = 25) -> bool:
    generator = torch.Generator().manual_seed(10 + rank)
    inputs = torch.randn(64, 16, generator=generator)
    targets = inputs[:, :4].clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = torch.cat(
        [getattr(p, "full_tensor", lambda p=p: p)().detach().flatten() for p in model.parameters()]
    )
    everyone = [torch.empty_like(weights) for _ in range(2)]
    dist.all_gather(everyone, weights)
    return losses[-1] < 0.7 * losses[0] and torch.equal(*everyone)


def relative_error(own: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """Return the largest difference relative to the largest gradient."""
    largest = max(each.abs().max().item() for each in exact)
    return max((a - b).abs().max().item() for a, b in zip(own, exact, strict=True)) / largest


def use_ddp(rank: int) -> dict[str, Any]:
    exact = gradients(DistributedDataParallel(network()), rank)
    results: dict[str, Any] = {}
    for kind in ("fp16", "bf16"):
        model = DistributedDataParallel(network())
        chosen = compress(model, kind, measure=False)
        results[kind] = (chosen, relative_error(gradients(model, rank), exact), trains(model, rank))
    model = DistributedDataParallel(network())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    compress(model, "powersgd", measure=False, powersgd=state)
    results["powersgd"] = (trains(model, rank, 40), state.compression_stats()[0])
    large = DistributedDataParallel(network(30_000))
    for wrong, of in (("powersgd", large), ("lz4", large), ("bf16", network())):
        with pytest.raises(InvalidValue) as caught:
            compress(of, wrong)  # type: ignore[arg-type]
        results[f"wrong {wrong}"] = str(caught.value)
    compress(DistributedDataParallel(network(30_000), bucket_cap_mb=8), "powersgd", measure=False)
    return results


def test_ddp_gradients_are_compressed(tmp_path: Path) -> None:
    for results in run(2, use_ddp, tmp_path):
        for kind, exponent in (("fp16", 10), ("bf16", 7)):
            chosen, difference, trained = results[kind]
            assert (chosen, trained) == (kind, True)
            assert 0 < difference < 3 * 2**-exponent  # 0 without compression
        trained, rate = results["powersgd"]
        assert trained
        assert rate > 2
        assert results["wrong powersgd"].endswith("; set DistributedDataParallel bucket_cap_mb=3")
        assert "choose from auto, fp16, bf16 and powersgd" in results["wrong lz4"]
        assert "wrap the model by DistributedDataParallel" in results["wrong bf16"]


def sharded() -> torch.nn.Module:
    model = network()
    fully_shard(model[0])
    fully_shard(model)
    return model


def use_fsdp2(rank: int) -> dict[str, Any]:
    exact = gradients(sharded(), rank)
    results: dict[str, Any] = {}
    for kind in ("fp16", "bf16"):
        model = sharded()
        compress(model, kind, measure=False)
        near = relative_error(gradients(model, rank), exact)
        hooks = [
            group._reduce_scatter_comm
            for part in (model[0], model)
            for group in part._get_fsdp_state()._fsdp_param_groups
        ]
        calls = [hook.calls for hook in hooks if isinstance(hook, CompressedReduceScatter)]
        results[kind] = (near, calls, trains(model, rank))
    with pytest.raises(InvalidValue) as caught:
        compress(sharded(), "powersgd")
    results["wrong"] = str(caught.value)
    return results


def test_fsdp2_gradients_are_compressed(tmp_path: Path) -> None:
    for results in run(2, use_fsdp2, tmp_path):
        for kind, exponent in (("fp16", 10), ("bf16", 7)):
            difference, calls, trained = results[kind]
            assert 0 < difference < 3 * 2**-exponent
            assert (calls, trained) == ([1, 1], True)
        assert "PowerSGD needs whole gradients" in results["wrong"]


def choose(rank: int) -> Any:
    timing = measure_link(50_000, ("bf16", "fp16", "powersgd"))
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("holdfast.comm")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    model = DistributedDataParallel(network())
    chosen = compress(model)
    return timing, chosen, lines, compress(model, None), trains(model, rank)


def test_all_ranks_choose_the_faster_option(tmp_path: Path) -> None:
    results = run(2, choose, tmp_path)
    assert results[0] == results[1]
    timing, chosen, lines, nothing, trained = results[0]
    assert min(timing.plain_s, *timing.compressed_s.values()) > 0
    assert (nothing, trained) == (None, True)
    assert [line.partition(" ")[0] for line in lines] == ["bf16", "fp16"]
    assert all(
        ("does not pay on this link: " in line) != (" pays on this link: " in line)
        for line in lines
    )
    assert (chosen is not None) == any(" pays on this link: " in line for line in lines)


def test_timing_is_described() -> None:
    timing = CompressionTiming(6_553_600, 0.5, {"bf16": 0.25, "fp16": 0.2, "powersgd": 0.01})
    assert timing.best() == "fp16"
    assert timing.describe("bf16") == (
        "bf16 pays on this link: 2.00x (26.2 MB of gradients in 0.25 s, uncompressed in 0.5 s)"
    )
    slow = CompressionTiming(6_553_600, 0.5, {"bf16": 0.7, "fp16": 0.49})
    assert slow.best() is None
    assert slow.describe("bf16").startswith("bf16 does not pay on this link: 0.71x (")


def test_measurement_from_the_command_line(tmp_path: Path) -> None:
    command = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m"]
    command += ["holdfast.training.collectives", "--measure", "--mb", "0.5"]
    done = RunningProgram(*command, folder=tmp_path).result()
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["bf16", "fp16", "powersgd"]
