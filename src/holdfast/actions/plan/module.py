"""A plan for a module of the user's own: its weights are counted, and its step is run on fake tensors where asked.

Where a transformer is recognised in it, all formulas hold. Otherwise the run on fake tensors answers for memory, and of
time nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.actions.plan.model import Model
from holdfast.actions.plan.setup import batches, data_ranks, setup_of
from holdfast.actions.plan.wish import GIB, Run, Wish
from holdfast.errors import BadValue
from holdfast.plan.described import Described
from holdfast.plan.setup import Recompute, Setup
from holdfast.plan.simulated import Simulated, differences
from holdfast.plan.towers import Tower
from holdfast.runtime.footprint import describe, simulate

#: Is told what is going on, as it takes seconds.
Tell = Callable[[str], None]

_NO_TIME = "how long a step takes is not known of a module that is no transformer"


def found(text: str, tell: Tell | None = None) -> Model:
    """The module that the function builds, in numbers; a transformer where it is recognised as one.

    Raises:
        MissingExtra: torch is not installed.
        BadValue: it cannot be loaded or built.
    """
    module = describe(text, tell=tell)
    towers: tuple[Tower, ...] = ()
    assumed = module.unknown
    if module.transformer is not None and module.trained == module.params:
        towers = (Tower(model=module.transformer),)
        assumed = (f"{_shape(module)} (recognised in the module)",)
    return Model(name=module.name, asked=(text,), towers=towers, assumed=assumed, source=text, described=module)


def _shape(module: Described) -> str:
    form = module.transformer
    return f"{form.layers} layers {form.hidden} wide, {form.heads} heads" if form else ""


def simulated(wish: Wish, setup: Setup, tell: Tell | None = None) -> Simulated:
    """A step of the module on fake tensors.

    Raises:
        MissingExtra, BadValue: it cannot be run, or not with this setup.
    """
    return simulate(wish.model.source, setup, int(wish.cluster.gpu.memory_gib * GIB), tell=tell)


def run(wish: Wish, tell: Tell | None = None) -> tuple[Run, Simulated]:
    """A module whose form is not known, in the setup that was given; nothing is chosen, as each try takes seconds.

    Raises:
        MissingExtra, BadValue: as above, or GPUs of several kinds.
    """
    if len(wish.parts) > 1:
        raise BadValue(f"{wish.model.name} on GPUs of several kinds", why="its speed on each is not known",
                       next_step="measure it with holdfast.probe_speed")  # fmt: skip
    data = data_ranks(wish)
    micro, times = batches(wish, data)[0]
    setup = setup_of(wish, data, micro, times, wish.recompute or Recompute.NONE)
    seen = simulated(wish, setup, tell)
    return Run(setup=setup, cluster=wish.cluster, footprint=seen.footprint, step=None, why=_NO_TIME), seen


def beside(one: Run, seen: Simulated) -> tuple[str, ...]:
    """What the run on fake tensors says beside the formulas, in sentences."""
    formula, rank = one.footprint.worst, seen.footprint.worst
    layers = ""
    if seen.depths and seen.depths[0] != seen.layers:
        layers = f", from runs of {' and '.join(map(str, sorted(set(seen.depths))))} of {seen.layers} layers"
    how = f"the module itself, run on fake tensors in {seen.took_s:.0f} s (torch {seen.torch}){layers}"
    said = [f"{how}: {rank.tensors / GIB:.2f} GiB of tensors at the peak"]
    if one.footprint is not seen.footprint:
        said.append(f"the formulas say {formula.tensors / GIB:.2f} GiB")
        said += [f"they differ in {each.part}: {each.formula / GIB:.2f} GiB by the formulas, "
                 f"{each.simulated / GIB:.2f} as it was run" for each in differences(formula, rank)]  # fmt: skip
    return (*said, *seen.notes)
