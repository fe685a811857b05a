"""How long a step takes of a model that is several towers, some of them frozen or with adapters.

What is frozen needs no gradients of its weights, a third of the products; where nothing before it is trained either, no
backward at all. Forward is the same, and FSDP gathers what is frozen, too. An adapter's products are small, but its
input is read once more, and its output, as wide as that of the matrix beside it, is written, read again and added.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.errors import BadValue
from holdfast.plan.hardware import Cluster
from holdfast.plan.rates import USUAL, Conditions
from holdfast.plan.setup import Recompute, Setup
from holdfast.plan.time import Spent, Step, communication, summed
from holdfast.plan.towers import Tower
from holdfast.plan.traffic import Call, Part, traffic
from holdfast.plan.work import Work, micro_batch, update


def step_of(towers: Sequence[Tower], setup: Setup, cluster: Cluster, conditions: Conditions | None = None) -> Step:
    """The time of an optimizer step; tokens are the last tower's.

    Raises:
        BadValue: no towers, a pipeline, the setup needs another number of GPUs, or a dtype that they do not have.
    """
    given = conditions or USUAL
    if not towers:
        raise BadValue("a model without towers", why="there has to be one")
    if setup.pipeline > 1:
        raise BadValue("a pipeline over towers", why="how its stages are cut is not known here")
    if setup.world_size != cluster.gpus:
        raise BadValue(f"the setup for {cluster}", why=f"it needs {setup.world_size} GPUs, not {cluster.gpus}")
    spent = Spent(compute=0.0, exposed={}, hidden={}, bubble=0.0, optimizer=0.0, needed=0.0, computed=0.0)
    flows = False
    for tower in towers:
        mine = msgspec.structs.replace(setup, sequence=tower.tokens or setup.sequence)
        flows = flows or tower.learns
        whole = micro_batch(tower.model, mine, cluster.gpu, given)
        work = _adapted(tower, _work(tower, whole, flows=flows), mine, cluster, given)
        spent.compute += (work.forward + work.backward + work.again) * setup.accumulation
        calls = _calls(tower, traffic(tower.model, mine, given.bucket), flows=flows)
        for sums, more in zip(
            (spent.exposed, spent.hidden),
            communication(calls, tower.model.layers, mine, cluster, given, work),
            strict=True,
        ):
            for part, seconds in more.items():
                sums[part] = sums.get(part, 0.0) + seconds
        spent.optimizer += update(tower.model, mine, cluster.gpu, given) * _trained(tower)
        once = tower.model.flops_a_token(mine.sequence, causal=setup.flash) * mine.tokens_a_step / 3
        spent.needed += once * (1 + flows + tower.trained)
        spent.computed += once * (1 + flows + tower.trained + flows * work.again_share)
        flows = flows or tower.projector > 0
    return summed(spent, setup, cluster, given)


def _work(tower: Tower, whole: Work, *, flows: bool) -> Work:
    """What of a tower's work is done: gradients go through it (``flows``), and its weights have some."""
    if not flows:
        return Work(whole.forward, 0.0, 0.0, 0.0)
    return whole if tower.trained else Work(whole.forward, whole.backward / 2, whole.again, whole.again_share)


def _adapted(tower: Tower, work: Work, setup: Setup, cluster: Cluster, given: Conditions) -> Work:
    """With what its adapters add: passes over memory, each of 2 bytes a number; backward has twice as many."""
    if tower.lora is None:
        return work
    numbers = sum(wide + 4 * made for wide, made in tower.lora.ends(tower.model)) / setup.tensor
    tokens = setup.micro_batch * setup.sequence / setup.context
    seconds = tower.model.layers * tokens * 2 * numbers / (cluster.gpu.bandwidth * given.rates.memory)
    again = seconds if setup.recompute is Recompute.FULL else 0.0
    return Work(work.forward + seconds, work.backward + 2 * seconds, work.again + again, work.again_share)


def _calls(tower: Tower, calls: Sequence[Call], *, flows: bool) -> list[Call]:
    """What is sent for it; an adapter's gradients are too few to count."""
    kept = [each for each in calls if tower.trained or each.part not in (Part.REDUCE, Part.REPLICAS)]
    return kept if flows else [msgspec.structs.replace(each, backward=0.0) for each in kept]


def _trained(tower: Tower) -> float:
    """The share of its weights that the optimizer has states of."""
    if tower.trained:
        return 1.0
    return tower.lora.params(tower.model) * tower.model.layers / tower.model.params if tower.lora else 0.0
