"""Runs a step at two depths and says what the whole model needs.

Every moment's parts grow by the same bytes with each layer, so two depths give all of them. What is kept of a layer
that is computed again every second time does so for an even number of layers, hence even depths.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import msgspec
import torch
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from holdfast.errors import BadValue
from holdfast.plan.peaks import Moment, Passing
from holdfast.plan.setup import Loss, Offload, Optimizer, Recompute, Setup, Strategy
from holdfast.plan.simulated import Simulated, seen
from holdfast.plan.states import Held
from holdfast.runtime.footprint import stepping
from holdfast.runtime.footprint.describing import describe
from holdfast.runtime.footprint.loading import Step, build, users_errors
from holdfast.runtime.footprint.stacks import cut
from holdfast.runtime.footprint.tracking import (
    Interfaces,
    Peaks,
    interfaces,
    kinds_of,
    leave_frozen,
    tracker,
    without_propagation,
)

#: Layers of the two runs; deeper models are extrapolated.
DEPTHS = (4, 6)
#: Shards of more ranks are reckoned from those of so many: to deal out shares among thousands takes minutes.
MOST_SHARDS = 256
_STAY = "the closed formulas know it"


class _Run(NamedTuple):
    """Bytes by kind at each moment, and what stands there from step to step."""

    peaks: Mapping[str, Counter[str]]
    steady: Counter[str]


def simulate(
    source: str, function: Callable[..., Any], setup: Setup, memory: int | None, tell: Callable[[str], None]
) -> Simulated:
    """What one rank needs. Both this and the import of ``function`` belong into :func:`~.kernels.as_on_a_gpu`.

    Raises:
        BadValue: as :func:`holdfast.runtime.footprint.simulate`.
    """
    began = time.monotonic()
    names = interfaces()  # noqa: SYNC005 - the only process of a world that is made up
    _check(setup)
    with torch.device("meta"):
        module, _ = build(source, function)
    with users_errors(source, "counting its weights"):
        model = describe(module)
    if not model.trained:
        raise BadValue("a model of which nothing is trained", why="there is no step to run")
    path = model.stacks[0].path if model.stacks else None
    layers = model.stacks[0].count if model.stacks else 0
    depths = DEPTHS if layers > DEPTHS[1] else (layers,)
    smaller, share = _fewer_ranks(setup)
    runs = []
    for depth in depths:
        tell(f"running a step of {depth} of {layers} layers" if path is not None else "running a step")
        with users_errors(source, "running its step"):
            runs.append(_shared(_run(names, source, function, smaller, path, depth), share))
    whole = runs[0] if len(runs) == 1 else _at(layers, depths, runs)
    footprint = seen(_held(whole), _passing(whole), setup, memory)
    return Simulated(
        footprint=footprint,
        model=model,
        layers=layers,
        depths=depths,
        peaks={moment: kinds["Total"] for moment, kinds in whole.peaks.items()},
        torch=str(torch.__version__),
        took_s=time.monotonic() - began,
        notes=tuple(_notes(setup, path)),
    )


def _check(setup: Setup) -> None:
    """Refuse what cannot be run so.

    Raises:
        BadValue: the first such thing.
    """
    form, strategy = setup.precision, setup.strategy
    known = (Optimizer.SGD, Optimizer.MOMENTUM, Optimizer.ADAMW)
    numbers = form.compute in (2, 4) and form.reduced in (2, 4) and form.master in (0, 4)
    refused = (
        (strategy not in (Strategy.FSDP2, Strategy.DDP), strategy, "FSDP2 and DDP can be run so"),
        (setup.world_size != setup.data, "other than data parallelism", "how a module is divided so is not known"),
        (setup.expert > 1, "expert parallelism", "which modules are experts is not known"),
        (setup.offload is not Offload.NONE, "offload", "all fake tensors are on one device"),
        (setup.optimizer not in known, setup.optimizer, "SGD, momentum and AdamW can be run so"),
        (not numbers, "this precision", "bf16 and fp32 can be run so"),
        (form.master and form.compute == 4, "a copy in fp32 of weights in fp32", "there is none"),
    )
    for wrong, what, why in refused:
        if wrong:
            raise BadValue(f"a run on fake tensors with {what}", why=why, next_step=_STAY)


def _notes(setup: Setup, path: str | None) -> list[str]:
    found = []
    if setup.loss is not Loss.EAGER:
        found.append(f"the loss is the module's own or torch's op by op, not {setup.loss}")
    if setup.compiled:
        found.append("nothing is compiled")
    if path is None and setup.recompute is not Recompute.NONE:
        found.append("nothing is computed again: there is no row of equal layers")
    if setup.recompute is Recompute.SELECTIVE:
        found.append("attention's scores are as the module computes them")
    return found


def _fewer_ranks(setup: Setup) -> tuple[Setup, float]:
    """The same with no more ranks than what each holds hangs on, and what it would hold of that with all of them."""
    if setup.strategy is Strategy.DDP:
        return setup, 1.0
    shards = min(setup.shards, MOST_SHARDS)
    replicas = min(setup.replicas, 2)
    return msgspec.structs.replace(setup, data=replicas * shards, replicas=replicas), shards / setup.shards


_SHARED = ("SHARDED_PARAM", "SHARDED_GRAD", "OPT")


def _shared(run: _Run, share: float) -> _Run:
    """With shares of so much."""
    if share == 1.0:
        return run

    def less(kinds: Counter[str]) -> Counter[str]:
        found = Counter({kind: round(size * (share if kind in _SHARED else 1.0)) for kind, size in kinds.items()})
        found["Total"] = sum(size for kind, size in found.items() if kind != "Total")
        return found

    return _Run({moment: less(kinds) for moment, kinds in run.peaks.items()}, less(run.steady))


def _run(
    names: Interfaces, source: str, function: Callable[..., Any], setup: Setup, path: str | None, depth: int
) -> _Run:
    peaks = Peaks()
    sharded = setup.strategy is Strategy.FSDP2
    with ExitStack() as world:
        world.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        mesh = world.enter_context(stepping.fake_world(names, setup))
        world.enter_context(names.fake_mode())
        module, step = _built(source, function, depth)
        if path is not None:
            cut(module, path, depth)
        step = step or stepping.default_step(module)
        within = stepping.prepare(names, mesh, module, path, setup)
        stepping.follow(module, path, peaks)
        world.enter_context(without_propagation(names, peaks))
        adjust = stepping.optimizer(module, setup)
        held = stepping.buckets(module, setup)
        watch = _watch(names, module, adjust, held, peaks, sharded=sharded)
        return _step(watch, adjust, peaks, setup, lambda: _within(within, step, module, setup))


def _built(source: str, function: Callable[..., Any], depth: int) -> tuple[nn.Module, Step | None]:
    """Of fake tensors; where building asks one for its value, on the meta device, and fake ones take their places."""
    try:
        return build(source, function, depth)
    except BadValue:
        with unset_fake_temporarily(), torch.device("meta"):
            module, step = build(source, function, depth)
        stepping.replace(module, lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype))
        return module, step


def _watch(
    names: Interfaces, module: nn.Module, adjust: torch.optim.Optimizer, held: list[Any], peaks: Peaks, *, sharded: bool
) -> Any:
    kind = tracker(names, peaks, sharded=sharded)
    if sharded:
        return kind(module, adjust)
    watch = kind()
    leave_frozen(watch, module)
    watch.track_external(module, adjust, *held)
    return watch


def _within(context: Any, step: Any, module: nn.Module, setup: Setup) -> Any:
    with context:
        return step(module, setup.micro_batch, setup.sequence)


def _step(watch: Any, adjust: Any, peaks: Peaks, setup: Setup, forward: Callable[[], Any]) -> _Run:
    with watch:
        stepping.run(forward, adjust, peaks, min(setup.accumulation, 2), watch.reset_mod_stats)
        adjust.zero_grad()
        steady = kinds_of(watch.get_tracker_snapshot())
    return _Run(peaks.highest, steady)


def _at(layers: int, depths: tuple[int, ...], runs: list[_Run]) -> _Run:
    """The line through two runs, at full depth."""
    first, second = runs
    times = (layers - depths[0]) / (depths[1] - depths[0])

    def line(one: Counter[str], two: Counter[str]) -> Counter[str]:
        kinds = {*one, *two}
        return Counter({kind: round(one[kind] + times * (two[kind] - one[kind])) for kind in kinds})

    peaks = {
        moment: line(first.peaks[moment], kinds) for moment, kinds in second.peaks.items() if moment in first.peaks
    }
    return _Run(peaks, line(first.steady, second.steady))


#: The two trackers' own kinds.
_PARAMETERS = ("SHARDED_PARAM", "PARAM", "BUFFER", "INP")
_GRADIENTS = ("SHARDED_GRAD", "GRAD")
_GATHERED = ("UNSHARDED_PARAM", "ALL_GATHER")
_BUFFERS = ("REDUCE_SCATTER", "OTH")
_TEMPORARY = ("TEMP", "UNSHARDED_GRAD")
_MOMENTS = {
    stepping.FORWARD: Moment.LOSS, stepping.LOSS: Moment.LOSS, stepping.BACKWARD: Moment.BACKWARD,
    stepping.END: Moment.END, stepping.STEP: Moment.STEP,
}  # fmt: skip


def _held(whole: _Run) -> Held:
    def of(kinds: Counter[str], names: tuple[str, ...]) -> int:
        return sum(kinds[name] for name in names)

    last = whole.peaks[stepping.STEP]
    parameters = of(whole.steady, _PARAMETERS)
    return Held(parameters, 0.0, of(last, _GRADIENTS), whole.steady["OPT"], 0.0)


def _passing(whole: _Run) -> dict[Moment, Passing]:
    """What comes and goes, at the highest of each moment."""
    found: dict[Moment, Passing] = {}
    for name, kinds in whole.peaks.items():
        moment = _MOMENTS[name]
        beside = kinds["OPT"] - whole.steady["OPT"]
        passing = Passing(
            moment,
            gradients=sum(kinds[each] for each in _GRADIENTS),
            activations=kinds["ACT"],
            temporary=sum(kinds[each] for each in _TEMPORARY) + beside,
            gathered=sum(kinds[each] for each in _GATHERED),
            buffers=sum(kinds[each] for each in _BUFFERS),
        )
        if moment not in found or passing.all > found[moment].all:
            found[moment] = passing
    return found
