"""Plans a run before it is started: what it needs of memory and time on which GPUs, and what would be better.

One setup where degrees of parallelism are given; GPUs of several kinds get unequal shares of the batch. What is not
said and can be chosen (micro-batch, what is computed again) is chosen so that the step is fast and fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from holdfast.actions.plan import search
from holdfast.actions.plan.command import command
from holdfast.actions.plan.model import trained
from holdfast.actions.plan.setup import chosen
from holdfast.actions.plan.wish import GIB, Run, Wish, needs, run
from holdfast.errors import BadValue
from holdfast.findings import Finding, Level, Remedy, Verdict
from holdfast.plan.fitting import Change, Ways, what_would_fit
from holdfast.plan.layout import Choice
from holdfast.plan.memory import Answer
from holdfast.plan.scaling import Curve, curve, sizes
from holdfast.plan.setup import Setup
from holdfast.plan.shortfall import Shortfall, shortfall
from holdfast.rules import plan as rules
from holdfast.rules import preflight

if TYPE_CHECKING:
    from holdfast.plan.batches import Allotment

QUESTION = "does it fit, and how fast is it?"
#: More GPUs than so many times those that are there are no advice.
_MOST_TIMES = 8


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a run fit (or helps most, where nothing does): ``saved`` bytes, what it costs, and the run then."""

    what: str
    cost: str
    saved: int
    run: Run
    wish: Wish


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. ``runs``: one, or one for each kind of GPU; ``assumed``: what was chosen or taken for granted.

    ``fixes`` make it fit where it does not surely.
    """

    wish: Wish
    runs: tuple[Run, ...]
    findings: tuple[Finding, ...]
    verdict: Verdict
    assumed: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()
    allotment: Allotment | None = None
    choice: Choice | None = None
    curve: Curve | None = None
    shortfall: Shortfall | None = None
    #: What a run on fake tensors says.
    seen: tuple[str, ...] = ()

    @property
    def run(self) -> Run:
        """The one that decides: of several kinds of GPU the one with the least room."""
        return tightest(self.runs)

    @property
    def exit_status(self) -> int:
        """0: it fits, or does so tightly; 1: it does not."""
        return int(any(claim.level is Level.ERROR for claim in self.findings))


def tightest(runs: tuple[Run, ...]) -> Run:
    """The one with the least room."""
    return min(runs, key=lambda each: each.footprint.margin or 0)


def plan(wish: Wish, tell: Callable[[str], None] | None = None) -> Planned:
    """What is asked for; ``tell`` is told what is going on where a module of the user's own is run.

    Raises:
        MissingExtra: a module is to be run, and torch is not installed.
        BadValue: a batch that cannot be met, degrees that do not multiply to the GPUs, a mixture that is not known.
    """
    if not wish.model.towers:
        return _of_module(wish, tell)
    runs, allotment, choice = _runs(wish)
    one = tightest(runs)
    fixes: tuple[Fix, ...] = ()
    if choice is not None and choice.shortage is not None:
        fixes = tuple(_fixes(wish, choice.shortage.ways))
    elif one.footprint.answer is not Answer.FITS:
        ways = what_would_fit(lambda setup: needs(wish.model, setup, one.cluster), one.setup)
        fixes = tuple(_fixes(wish, ways))
    if one.footprint.answer is Answer.DOES_NOT_FIT and len(runs) == 1:
        fixes += tuple(_adapters(wish, one))
    findings = tuple(rules.judge(_judged(wish, one, fixes)))
    return Planned(
        wish=wish, runs=runs, findings=findings, verdict=preflight.verdict(findings, (), QUESTION),
        assumed=tuple(_assumed(wish, one)), fixes=fixes, allotment=allotment, choice=choice,
        curve=_curve(wish, one.setup), shortfall=_shortfall(wish, one.setup),
        seen=_seen(wish, one, tell) if wish.simulate else (),
    )  # fmt: skip


def _of_module(wish: Wish, tell: Callable[[str], None] | None) -> Planned:
    """Of a form that is not known: memory as it was run on fake tensors, and nothing else."""
    from holdfast.actions.plan import module as plan_module  # noqa: PLC0415 - it starts a process with torch

    if wish.sizes or wish.measured:
        raise BadValue(f"a curve of {wish.model.name}", why="how long its step takes is not known",
                       next_step="name a transformer of its size")  # fmt: skip
    one, seen = plan_module.run(wish, tell)
    findings = tuple(rules.judge(_judged(wish, one, ())))
    return Planned(
        wish=wish, runs=(one,), findings=findings, verdict=preflight.verdict(findings, (), QUESTION),
        assumed=tuple(_assumed(wish, one)), seen=plan_module.beside(one, seen),
    )  # fmt: skip


def _seen(wish: Wish, one: Run, tell: Callable[[str], None] | None) -> tuple[str, ...]:
    from holdfast.actions.plan import module as plan_module  # noqa: PLC0415 - as above

    if not wish.model.source:
        raise BadValue("--simulate", why="only a module of your own can be run", next_step="give FILE.py:FUNCTION")
    try:
        return plan_module.beside(one, plan_module.simulated(wish, one.setup, tell))
    except BadValue as error:  # the formulas' answer stays
        return (str(error),)


def _runs(wish: Wish) -> tuple[tuple[Run, ...], Allotment | None, Choice | None]:
    if search.wanted(wish):
        best, choice = search.searched(wish)
        return (best,), None, choice
    if len(wish.parts) == 1:
        return (chosen(wish),), None, None
    from holdfast.actions.plan import mixed  # noqa: PLC0415 - numpy is for those who have several kinds of GPU

    return *mixed.runs(wish), None


def _fixes(wish: Wish, ways: Ways) -> Iterator[Fix]:
    """Changes that are enough alone; where none is, those that are together, or help most."""
    alone = [each for each in ways.alone if _possible(wish, each.setup)]
    for each in alone:
        yield Fix(what=each.what, cost=each.cost, saved=each.saved, run=_run(wish, each), wish=wish)
    every = [each for each in ways.together if _possible(wish, each.setup)]
    if every and not alone:
        costs = dict.fromkeys(each.cost for each in every if not each.cost.startswith("none"))
        yield Fix(
            what=", and ".join(each.what for each in every), cost="; ".join(costs) or "none to speak of",
            saved=sum(each.saved for each in every), run=_run(wish, every[-1]), wish=wish,
        )  # fmt: skip


def _possible(wish: Wish, setup: Setup) -> bool:
    """Not many times the GPUs; and GPUs of several kinds are data-parallel, and as many as there are."""
    if len(wish.parts) == 1:
        return setup.world_size <= _MOST_TIMES * wish.gpus
    return setup.world_size == setup.data == wish.gpus


def _run(wish: Wish, change: Change) -> Run:
    if len(wish.parts) == 1:
        return run(wish, change.setup)
    return Run(setup=change.setup, cluster=wish.cluster, footprint=change.needs, step=None)


def _adapters(wish: Wish, one: Run) -> Iterator[Fix]:
    """To train adapters alone, where that is enough."""
    if wish.model.towers[-1].lora is not None:
        return
    for words, what in ((("16", False), "adapters alone (LoRA of rank 16)"),
                        (("16", True), "adapters alone, over weights in 4 bits (QLoRA)")):  # fmt: skip
        mine = replace(wish, model=trained(wish.model, lora=words[0], quantized=words[1]))
        after = run(mine, one.setup)
        if after.footprint.answer is Answer.FITS:
            saved = one.footprint.worst.total - after.footprint.worst.total
            yield Fix(what=what, cost="another training: all else stays as it is", saved=saved, run=after, wish=mine)
            return


# ---- what is judged, and what was chosen


def _judged(wish: Wish, one: Run, fixes: tuple[Fix, ...]) -> rules.Plan:
    return rules.Plan(
        name=wish.model.name, setup=one.setup, clusters=wish.parts, worst=one.cluster, footprint=one.footprint,
        precision=wish.half, remedies=tuple(_remedies(fixes)),
    )  # fmt: skip


def _remedies(fixes: tuple[Fix, ...]) -> Iterator[Remedy]:
    for fix in fixes:
        if fix.run.footprint.answer is not Answer.FITS:
            continue
        speed = f", {fix.run.step.tokens_per_s:,.0f} tokens/s" if fix.run.step else ""
        said = f"{fix.what[0].upper()}{fix.what[1:]}: {fix.saved / GIB:.1f} GiB less{speed}; costs {fix.cost}."
        yield Remedy(text=said, command=command(fix.wish, fix.run.setup))


def _assumed(wish: Wish, one: Run) -> Iterator[str]:
    setup = one.setup
    best = "the smallest" if one.footprint.answer is Answer.DOES_NOT_FIT else "the fastest that fit"
    yield from wish.model.assumed
    if wish.batch is None and len(wish.parts) == 1:
        yield f"a batch of {setup.global_batch:,}"
    if search.wanted(wish):
        yield f"the layout: {best}"
    elif not wish.model.towers:
        yield "one micro-batch a step" if setup.accumulation == 1 else f"micro-batches of {setup.micro_batch}"
    elif wish.recompute is None or (wish.batch is not None and wish.micro_batch is None):
        yield f"micro-batch and recomputation: {best}"
    if wish.precision == "auto":
        yield f"{wish.half} over fp32: all GPUs have it"


def _curve(wish: Wish, setup: Setup) -> Curve | None:
    if not wish.sizes:
        return None
    _alike(wish, "--scale")
    if len(wish.sizes) == 2:  # from … to …
        wanted = [each for each in sizes(setup, wish.sizes[1]) if each >= wish.sizes[0]]
        wanted = sorted({wish.sizes[0], *wanted})
    else:
        wanted = list(wish.sizes)
    return curve(wish.model.main, setup, wish.cluster, wanted, wish.growth, wish.conditions)


def _shortfall(wish: Wish, setup: Setup) -> Shortfall | None:
    if wish.measured is None:
        return None
    _alike(wish, "--measured")
    return shortfall(wish.model.main, setup, wish.cluster, wish.measured, wish.growth, wish.conditions)


def _alike(wish: Wish, option: str) -> None:
    if len(wish.parts) > 1:
        raise BadValue(option, why="a curve is of GPUs of one kind", next_step="give one kind with --on")
