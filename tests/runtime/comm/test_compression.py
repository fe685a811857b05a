"""Compressed gradients, by torch's own DDP and FSDP2 on gloo: near the exact ones, really compressed, learning."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from holdfast.errors import BadValue
from holdfast.runtime.comm.compression import CompressedReduceScatter, Measurement, compress, measure_link
from tests.runtime.comm.ranks import run

pytestmark = pytest.mark.slow


def network(width: int = 48) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Linear(width, 4))


def gradients(model: torch.nn.Module, rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    model(torch.randn(32, 16, generator=generator)).square().mean().backward()
    return [getattr(p.grad, "full_tensor", lambda p=p: p.grad)().clone() for p in model.parameters()]


def learns(model: torch.nn.Module, rank: int, steps: int = 25) -> bool:
    generator = torch.Generator().manual_seed(10 + rank)
    inputs = torch.randn(64, 16, generator=generator)
    wanted = inputs[:, :4].clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(inputs) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = torch.cat([getattr(p, "full_tensor", lambda p=p: p)().detach().flatten() for p in model.parameters()])
    everyone = [torch.empty_like(weights) for _ in range(2)]
    dist.all_gather(everyone, weights)
    return losses[-1] < 0.7 * losses[0] and torch.equal(*everyone)


def apart(mine: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """The largest difference, of the largest gradient."""
    largest = max(each.abs().max().item() for each in exact)
    return max((a - b).abs().max().item() for a, b in zip(mine, exact, strict=True)) / largest


def with_ddp(rank: int) -> dict[str, Any]:
    exact = gradients(DistributedDataParallel(network()), rank)
    told: dict[str, Any] = {}
    for kind in ("fp16", "bf16"):
        model = DistributedDataParallel(network())
        chosen = compress(model, kind, measure=False)
        told[kind] = (chosen, apart(gradients(model, rank), exact), learns(model, rank))
    model = DistributedDataParallel(network())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    compress(model, "powersgd", measure=False, powersgd=state)
    told["powersgd"] = (learns(model, rank, 40), state.compression_stats()[0])
    large = DistributedDataParallel(network(30_000))
    for wrong, of in (("powersgd", large), ("lz4", large), ("bf16", network())):
        with pytest.raises(BadValue) as caught:
            compress(of, wrong)  # type: ignore[arg-type]
        told[f"wrong {wrong}"] = str(caught.value)
    compress(DistributedDataParallel(network(30_000), bucket_cap_mb=8), "powersgd", measure=False)
    return told


def test_ddp(tmp_path: Path) -> None:
    for told in run(2, with_ddp, tmp_path):
        for kind, exponent in (("fp16", 10), ("bf16", 7)):
            chosen, difference, learnt = told[kind]
            assert (chosen, learnt) == (kind, True)
            assert 0 < difference < 3 * 2**-exponent  # 0 where nothing was compressed
        learnt, rate = told["powersgd"]
        assert learnt
        assert rate > 2
        assert told["wrong powersgd"].endswith("and fail: give DistributedDataParallel bucket_cap_mb=3")
        assert "none of auto, fp16, bf16 and powersgd" in told["wrong lz4"]
        assert "neither by DistributedDataParallel nor by fully_shard" in told["wrong bf16"]


def sharded() -> torch.nn.Module:
    model = network()
    fully_shard(model[0])
    fully_shard(model)
    return model


def with_fsdp2(rank: int) -> dict[str, Any]:
    exact = gradients(sharded(), rank)
    told: dict[str, Any] = {}
    for kind in ("fp16", "bf16"):
        model = sharded()
        compress(model, kind, measure=False)
        near = apart(gradients(model, rank), exact)
        hooks = [
            group._reduce_scatter_comm
            for part in (model[0], model)
            for group in part._get_fsdp_state()._fsdp_param_groups
        ]
        calls = [hook.calls for hook in hooks if isinstance(hook, CompressedReduceScatter)]
        told[kind] = (near, calls, learns(model, rank))
    with pytest.raises(BadValue) as caught:
        compress(sharded(), "powersgd")
    told["wrong"] = str(caught.value)
    return told


def test_fsdp2(tmp_path: Path) -> None:
    for told in run(2, with_fsdp2, tmp_path):
        for kind, exponent in (("fp16", 10), ("bf16", 7)):
            difference, calls, learnt = told[kind]
            assert 0 < difference < 3 * 2**-exponent
            assert (calls, learnt) == ([1, 1], True)
        assert "PowerSGD needs whole gradients" in told["wrong"]


def chooses(rank: int) -> Any:
    found = measure_link(50_000, ("bf16", "fp16", "powersgd"))
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("holdfast.comm")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    model = DistributedDataParallel(network())
    chosen = compress(model)
    return found, chosen, lines, compress(model, None), learns(model, rank)


def test_what_pays_is_chosen_alike_on_all_ranks(tmp_path: Path) -> None:
    told = run(2, chooses, tmp_path)
    assert told[0] == told[1]
    found, chosen, lines, nothing, learnt = told[0]
    assert min(found.plain_s, *found.compressed_s.values()) > 0
    assert (nothing, learnt) == (None, True)
    assert [line.partition(" ")[0] for line in lines] == ["bf16", "fp16"]
    assert all(("does not pay on this link: " in line) != (" pays on this link: " in line) for line in lines)
    assert (chosen is not None) == any(" pays on this link: " in line for line in lines)


def test_a_measurement_in_words() -> None:
    found = Measurement(6_553_600, 0.5, {"bf16": 0.25, "fp16": 0.2, "powersgd": 0.01})
    assert found.best() == "fp16"
    assert found.say("bf16") == (
        "bf16 pays on this link: 2.00x (26.2 MB of gradients in 0.25 s, uncompressed in 0.5 s)"
    )  # fmt: skip
    slow = Measurement(6_553_600, 0.5, {"bf16": 0.7, "fp16": 0.49})
    assert slow.best() is None
    assert slow.say("bf16").startswith("bf16 does not pay on this link: 0.71x (")


def test_it_can_be_asked_for_from_the_shell(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone",
               "-m", "holdfast.runtime.comm", "--measure", "--mb", "0.5"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["bf16", "fp16", "powersgd"]
