"""Reduce DDP's gradients within groups of ranks first, then between groups, in a comm hook.

If links within groups (nodes, or neighboring ranks of equal speed) are faster than between them,
less data crosses the slow links. The second stage uses its own process groups, with one rank per
first-stage group, created by all ranks in the same order (:class:`holdfast.comm.Hierarchy`); in the
default group it would wait for ranks that never enter. FSDP2 does the same with a two-dimensional
mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from holdfast.core.errors import InvalidValue
from holdfast.core.keyword_hints import suggest_keywords
from holdfast.training.collectives.groups.group_info import runs_alone, state_of
from holdfast.training.collectives.hierarchy import Hierarchy
from holdfast.training.heterogeneous.gpu_kinds import RankSpeeds


@suggest_keywords
def reduce_by_groups(
    model: DistributedDataParallel,
    groups: RankSpeeds | Sequence[Sequence[int]] | None = None,
    *,
    timeout: float | str | None = None,
) -> Hierarchy:
    """Average DDP's gradients within groups of ranks, then between them; call it on every rank.

    ``groups``: global ranks, each in one group; measured speeds, to group similar ranks; None for
    ranks that share a host. ``timeout``: per bucket. The sum equals a plain all-reduce, in another
    order of addition. It runs synchronously in backward, so it pays on slow links between groups,
    not within one host.

    Raises:
        InvalidValue: the model is not DDP's, or the groups do not contain each of its ranks once.
        CollectiveTimeout: ranks did not join the creation of the groups.
    """
    if runs_alone(None):
        return Hierarchy()
    if not isinstance(model, DistributedDataParallel):
        raise InvalidValue(
            "reduce_by_groups",
            why=f"{type(model).__name__} is not wrapped by DistributedDataParallel",
            next_step="with FSDP2, use a two-dimensional mesh instead",
        )
    state = state_of(model.process_group)
    nodes = (
        [[state.ranks[index] for index in group] for group in groups.groups()]
        if isinstance(groups, RankSpeeds)
        else groups
    )
    hierarchy = Hierarchy(state.group, nodes=nodes)
    world = len(state.ranks)

    def hook(_: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        gradients = bucket.buffer()
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
            devices=[gradients.device] if gradients.is_cuda else []
        )
        future.set_result(hierarchy.all_reduce(gradients.div_(world), timeout=timeout))
        return future

    hook.__annotations__.clear()  # DDP compares them with types, but these are strings
    model.register_comm_hook(None, hook)
    return hierarchy
