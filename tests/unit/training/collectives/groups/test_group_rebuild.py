"""Rebuilt groups: members, independence of training's groups, and process exit."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from holdfast import comm
from holdfast.core.errors import CollectiveFailed, CollectiveTimeout, GroupBroken, InvalidValue
from holdfast.training.collectives.groups.group_info import state_of
from tests.unit.training.collectives.ranks import run

pytestmark = pytest.mark.slow


def break_three_times(rank: int) -> Any:
    """Another rank is missing each time; training's all-reduces continue meanwhile."""
    group = dist.new_group([0, 1, 2], group_desc="evaluation", timeout=timedelta(seconds=25))
    comm.all_reduce(torch.ones(1), group=group, timeout=20)
    sums, names, weights = [], [], torch.zeros(4)
    for turn in range(3):
        if rank != turn:
            with pytest.raises(CollectiveTimeout) as caught:
                comm.all_reduce(torch.ones(5), group=group, timeout=1.2)
            assert caught.value.missing == (turn,)
        for _ in range(5):
            gradient = torch.full((4,), float(rank + turn))
            dist.all_reduce(gradient)
            weights += gradient
        broken, group = group, comm.rebuild(group, timeout=20)
        with pytest.raises(GroupBroken):
            comm.all_reduce(torch.ones(1), group=broken)
        sums.append(
            comm.all_reduce(torch.full((3,), rank + turn), group=group, timeout=20).tolist()
        )
        names.append(group.group_name)
    limit = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    return weights.tolist(), sums, names, group.group_desc, limit, list(state_of(group).ranks)


def test_training_continues_while_another_group_is_rebuilt_three_times(
    tmp_path: Path,
) -> None:
    results = run(3, break_three_times, tmp_path)
    assert results[0] == results[1] == results[2]
    weights, sums, names, description, limit, ranks = results[0]
    assert weights == [5.0 * (3 + 6 + 9)] * 4
    assert sums == [[3] * 3, [6] * 3, [9] * 3]
    assert len(set(names)) == 3
    assert (description, limit, ranks) == ("evaluation", 25.0, [0, 1, 2])


def rebuild_without_rank_2(rank: int) -> Any:
    """Rank 2 never rebuilds; the others report it, continue without it, and rebuild again."""
    group = dist.new_group([2, 0, 1], timeout=timedelta(seconds=25))
    if rank == 2:
        with pytest.raises(InvalidValue, match="not among the members of the new group"):
            comm.rebuild(group, ranks=[0, 1])
        time.sleep(3)
        return None
    with pytest.raises(CollectiveTimeout) as caught:
        comm.rebuild(group, timeout=1)
    with pytest.raises(GroupBroken, match="it was rebuilt"):
        comm.all_reduce(torch.ones(1), group=group)
    fresh = comm.rebuild(group, ranks=[0, 1], timeout=20)
    rebuilt_twice = comm.rebuild(fresh, timeout=20)
    instead = [comm.all_reduce(torch.tensor([rank + 1]), group=rebuilt_twice, timeout=20).item()]
    return str(caught.value), caught.value.missing, instead


def test_missing_member_is_reported_and_can_be_excluded(tmp_path: Path) -> None:
    results = run(3, rebuild_without_rank_2, tmp_path)
    assert results[0] == results[1]
    text, missing, sums = results[0]
    assert (missing, sums) == ((2,), [3])
    assert text.startswith("rebuild of group '1' did not complete: rank 2 did not arrive within 1")


def rebuild_default_group(rank: int) -> Any:
    comm.all_reduce(torch.ones(1), timeout=20)
    if rank == 0:
        assert not comm.safe_all_reduce(torch.ones(1), timeout=0.5)
    else:
        time.sleep(0.5)
    group = comm.rebuild(timeout=20)
    return comm.all_reduce(
        torch.tensor([rank + 1]), group=group, timeout=20
    ).item(), group is dist.group.WORLD


def test_default_group_is_rebuilt_as_another_group(tmp_path: Path) -> None:
    assert run(2, rebuild_default_group, tmp_path) == [(3, False)] * 2


def rebuild_with_another_torch(_: int) -> Any:
    """As with a torch whose private function has another name."""
    vars(c10d).pop("_new_process_group_helper")
    with pytest.raises(CollectiveFailed) as caught:
        comm.rebuild(timeout=20)
    return str(caught.value)


def test_a_torch_that_creates_groups_in_another_way_is_named(tmp_path: Path) -> None:
    (sentence,) = run(1, rebuild_with_another_torch, tmp_path)
    assert f"torch {torch.__version__} creates groups in another way" in sentence


def rebuild_with_debug_detail(rank: int) -> Any:
    """As with TORCH_DISTRIBUTED_DEBUG=DETAIL, where each backend is wrapped."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    group = comm.rebuild(comm.rebuild(timeout=20), timeout=20)
    hierarchy = comm.Hierarchy(group, nodes=[[1], [0]], timeout=20)
    limit = group._get_backend(torch.device("cpu")).wrapped_pg.options._timeout.total_seconds()
    return hierarchy.all_reduce(torch.tensor([rank + 1])).item(), limit


def test_wrapped_groups_keep_their_timeout(tmp_path: Path) -> None:
    assert run(2, rebuild_with_debug_detail, tmp_path) == [(3, 30.0)] * 2


ENDS = """
import sys, torch, torch.distributed as dist
from datetime import timedelta
from holdfast import comm
from holdfast.core.errors import CollectiveTimeout
rank, how, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
store = dist.FileStore(folder + "/store", 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=600))
group = dist.new_group([0, 1], timeout=timedelta(seconds=600))
comm.all_reduce(torch.ones(3), group=group, timeout=20)
if rank == 0:
    try:
        comm.all_reduce(torch.ones(3), group=group, timeout=0.5)
    except CollectiveTimeout:
        pass
if how != "broken":
    group = comm.rebuild(group, timeout=20)
    assert comm.all_reduce(torch.ones(1), group=group, timeout=20).item() == 2
dist.barrier()
if how == "destroyed":
    dist.destroy_process_group()
store.set(f"ends{rank}", "")
if rank == 1:  # its connections stay open, so that the pending call of rank 0 would continue
    store.wait(["over"], timedelta(seconds=60))
"""


@pytest.mark.parametrize(
    "how",
    ["rebuilt", *(pytest.param(how, marks=pytest.mark.matrix) for how in ("destroyed", "broken"))],
)
def test_process_with_a_broken_group_exits_at_once_with_status_0(how: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", ENDS]
    ranks = [
        subprocess.Popen([*command, str(rank), how, str(tmp_path)], stderr=subprocess.PIPE)
        for rank in (0, 1)
    ]
    try:
        store = dist.FileStore(str(tmp_path / "store"), 2)
        store.wait(["ends0"], timedelta(seconds=100))  # imports take long on a loaded machine
        stderr = ranks[0].communicate(timeout=25)[1].decode()
        assert ranks[0].returncode == 0, stderr
        assert "terminate" not in stderr
        store.set("over", "")
        assert ranks[1].wait(25) == 0, ranks[1].communicate()
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
