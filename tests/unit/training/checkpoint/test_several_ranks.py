"""Several ranks: each byte is written once, any number of ranks loads it, and all ranks agree."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import holdfast
from holdfast.core import checkpoint_manifest
from holdfast.core.errors import CheckpointFailed, InvalidValue
from holdfast.recorder.torch_extension import torch_release
from holdfast.training.checkpoint.folder_owner import FILE as OWNER
from tests.unit.training.checkpoint.jobs import Job, flipped
from tests.unit.training.collectives.ranks import run

pytestmark = pytest.mark.slow
WIDTH = 33  # not a multiple of any number of ranks in this file


def in_ddp(model):
    """Wrap the model, which has a parameter without gradient, in DDP."""
    return DistributedDataParallel(model, find_unused_parameters=True)


class Position:
    """A per-rank state, as of a data loader; redistributed if the number of ranks changes."""

    def __init__(self, value=-1):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Positions(Position):
    """The same, restored from the states of all ranks."""

    def load_state_dicts(self, states):
        self.value = [state["value"] for state in states]


def sharded(seed):
    """Return a model of DTensors and its optimizer."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, WIDTH), nn.Linear(WIDTH, 3))
    if dist.is_initialized():
        shard(model, dist.init_device_mesh("cpu", (dist.get_world_size(),)))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def shard(model, mesh):
    """Shard with FSDP2, or with tensor parallelism where FSDP2 requires a GPU."""
    if torch_release() >= (2, 8):
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        from torch.distributed.tensor import parallel

        # A local output would lose the uneven width.
        styles = parallel.ColwiseParallel(use_local_output=False), parallel.RowwiseParallel()
        parallel.parallelize_module(model, mesh, {"0": styles[0], "1": styles[1]})


def step(model, optimizer):
    model(torch.ones(4, 5)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def full_state(model, optimizer):
    """Return the full tensors of the model and its optimizer by name."""
    found = dict(model.state_dict())
    for name, parameter in model.named_parameters():
        found |= {f"{name}/{key}": value for key, value in optimizer.state[parameter].items()}
    return {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()
        for name, value in found.items()
    }


def save_all(rank, root):
    model, optimizer = sharded(1)
    step(model, optimizer)
    checkpoint = holdfast.Checkpoint(
        root / "sharded",
        model=model,
        optimizer=optimizer,
        stateful={"at": Position(rank), "all": Positions(rank)},
    )
    checkpoint.save(1)
    expected = full_state(model, optimizer)
    step(model, optimizer)
    checkpoint.wait()
    torch.manual_seed(1)
    job = Job(root / "copies", wrap=in_ddp)
    job.train(2)
    job.checkpoint.save(2, asynchronous=False)
    torch.manual_seed(100 + rank)
    job.checkpoint.save(3, asynchronous=False)
    return expected, job.train(2)


def load_all(rank, root):
    model, optimizer = sharded(2)
    one, every = Position(), Positions()
    checkpoint = holdfast.Checkpoint(
        root / "sharded", model=model, optimizer=optimizer, stateful={"at": one, "all": every}
    )
    restored = checkpoint.load()
    found = full_state(model, optimizer), one.value, every.value, restored.own
    job = Job(root / "copies", seed=5, wrap=in_ddp)
    job.checkpoint.load()
    drawn = torch.rand(1).item()
    job.checkpoint.load()
    return *found, drawn, job.train(2) if rank < 2 and dist.get_world_size() == 2 else None


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.timeout(600)
def test_any_number_of_ranks_loads_a_checkpoint_of_two(tmp_path):
    expected, losses = zip(
        *run(2, save_all, folder(tmp_path, "save"), tmp_path, limit_s=200), strict=True
    )
    assert losses[0] != losses[1]  # each rank has its own random state
    for size in (2, 3):
        loaded = run(size, load_all, folder(tmp_path, f"load{size}"), tmp_path, limit_s=200)
        for rank, (found, one, every, own, _, after) in enumerate(loaded):
            assert same(found, expected[0])
            assert (one, every, own) == (rank if rank < 2 else 0, [0, 1], size == 2)
            assert after == (losses[rank] if size == 2 else None)
        assert (
            len({each[4] for each in loaded}) == size
        )  # an additional rank has its own random state
    model, optimizer = sharded(3)
    holdfast.Checkpoint(tmp_path / "sharded", model=model, optimizer=optimizer).load()
    assert same(full_state(model, optimizer), expected[0])
    # each tensor is in only one rank's file
    found = checkpoint_manifest.read_manifest(
        tmp_path / "copies" / checkpoint_manifest.folder_name(2)
    )
    sizes = {entry.path: entry.size for entry in found.files if entry.path.endswith("distcp")}
    single_rank = Job(tmp_path / "alone")
    single_rank.train(2)
    single_rank.checkpoint.save(2, asynchronous=False)
    (single,) = [
        entry.size
        for entry in single_rank.checkpoint.last.manifest.files
        if entry.path.endswith("distcp")
    ]
    assert len(sizes) == 2
    assert sum(sizes.values()) == pytest.approx(single, rel=0.02)


def folder(tmp_path, name):
    new_folder = tmp_path / name
    new_folder.mkdir()
    return new_folder


# ---- failures on one rank


def failures_on_rank_1(rank, root):
    """Return the error and duration on this rank of each kind of failure on rank 1."""
    job = Job(root, wrap=in_ddp)
    outcomes = []

    def failing(act):
        began = time.monotonic()
        try:
            act()
        except CheckpointFailed as error:
            outcomes.append((error.why, time.monotonic() - began))
        else:
            outcomes.append(("nothing", 0.0))

    job.checkpoint.save(1, asynchronous=False)
    # an object that cannot be saved
    job.checkpoint.state.stateful["odd"] = Position(Position() if rank == 1 else 0)
    failing(lambda: job.checkpoint.save(2, asynchronous=False))
    del job.checkpoint.state.stateful["odd"]
    job.checkpoint.save(2, asynchronous=False)
    # a state whose structure differs on one rank
    job.model.module.more = nn.Linear(1, 1) if rank == 1 else None
    failing(lambda: job.checkpoint.save(3, asynchronous=False))
    job.model.module.more = None
    # a background save
    job.checkpoint.save(4)
    failing(job.checkpoint.wait)
    # a rank that does not enter the save
    os.environ["HOLDFAST_CHECKPOINT_S"] = "3"
    if rank == 0:
        failing(lambda: job.checkpoint.save(5, asynchronous=False))
    else:
        time.sleep(4)
        outcomes.append(("late", 0.0))
    return outcomes


def test_a_failure_on_one_rank_fails_on_all(tmp_path):
    root = tmp_path / "checkpoints"
    zero, one = run(2, failures_on_rank_1, tmp_path, root)
    assert "rank 1: the state of 'odd' is not only plain values and tensors" in zero[0][0]
    assert "rank 1: in phase 'plan', while rank 0 is in 'begin'" in zero[1][0]
    assert [why for why, _ in zero[:3]] == [why for why, _ in one[:3]]
    assert zero[2][0] == "nothing"
    assert "no response from rank 1 within 3" in zero[3][0]
    assert zero[3][1] < 20
    assert sorted(path.name for path in root.iterdir() if path.name != OWNER) == [
        *map(checkpoint_manifest.folder_name, (1, 2, 4))
    ]


def load_damaged(_, root):
    job = Job(root, seed=4, wrap=in_ddp)
    return job.checkpoint.load().step


def save_three(_, root):
    job = Job(root, wrap=in_ddp)
    for number in (1, 2, 3):
        job.checkpoint.save(number, asynchronous=False)


def test_all_ranks_load_the_same_checkpoint_if_the_newest_are_damaged(tmp_path):
    root = tmp_path / "checkpoints"
    run(2, save_three, folder(tmp_path, "save"), root)
    flipped(root / checkpoint_manifest.folder_name(3) / "__1_0.distcp")
    Path(root / checkpoint_manifest.folder_name(2) / "rank-00001.state").unlink()
    assert run(2, load_damaged, folder(tmp_path, "load"), root) == [1, 1]


def rejected(_):
    from torch.distributed.fsdp import FullyShardedDataParallel

    inner = FullyShardedDataParallel(nn.Linear(5, 3), device_id=torch.device("cpu"))
    with pytest.raises(InvalidValue, match="FSDP1") as outcomes:
        holdfast.Checkpoint("nowhere", model={"net": nn.Sequential(inner)})
    return str(outcomes.value)


def test_fsdp1_is_rejected_with_an_alternative(tmp_path):
    for message in run(2, rejected, tmp_path):
        assert "'net'" in message
        assert "fully_shard" in message
