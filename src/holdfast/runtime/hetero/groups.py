"""Gradients summed by groups of ranks first, and then between the groups: for DDP, through its own hook.

Where links inside of groups of like GPUs (nodes, or speed groups that stand together) are quicker than between them,
less goes over the slow ones. The second stage runs in groups of its own, one rank of each speed group, made by all
ranks in the same order (:class:`holdfast.comm.Hierarchy`); in the default group it would wait for ranks that never
come. FSDP2 does the same by itself with a mesh of two axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from holdfast.errors import BadValue
from holdfast.plan.speeds import Speeds
from holdfast.runtime.comm.groups import state_of
from holdfast.runtime.comm.hierarchy import Hierarchy


def reduce_by_groups(
    model: DistributedDataParallel,
    groups: Speeds | Sequence[Sequence[int]] | None = None,
    *,
    timeout: float | str | None = None,
) -> Hierarchy:
    """Have DDP's gradients averaged by groups of ranks, and then between them; every rank calls it once, alike.

    ``groups``: global ranks, each in one group; measured speeds, whose groups are those of like ranks; None for ranks
    that share a host. ``timeout``: of each bucket's sum. The sum is that of a plain all-reduce, added up in another
    order. It is made while backward waits, so that it pays on slow links between groups, and not in a single host.

    Raises:
        BadValue: the model is not DDP's, or the groups are not its ranks, each once.
        CollectiveTimeout: ranks did not come to the making of the groups.
    """
    if not isinstance(model, DistributedDataParallel):
        raise BadValue("reduce_by_groups", why=f"{type(model).__name__} is not wrapped by DistributedDataParallel",
                       next_step="give FSDP2 a mesh of two axes instead")  # fmt: skip
    state = state_of(model.process_group)
    nodes = [[state.ranks[at] for at in group] for group in groups.groups()] if isinstance(groups, Speeds) else groups
    hierarchy = Hierarchy(state.group, nodes=nodes)
    world = len(state.ranks)

    def hook(_: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        gradients = bucket.buffer()
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future(
            devices=[gradients.device] if gradients.is_cuda else []
        )
        done.set_result(hierarchy.all_reduce(gradients.div_(world), timeout=timeout))
        return done

    hook.__annotations__.clear()  # DDP compares them with types, and these are texts
    model.register_comm_hook(None, hook)
    return hierarchy
