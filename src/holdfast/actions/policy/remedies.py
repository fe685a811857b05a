"""What the next start does differently: adjustments from those before, what failed, and what was tried already.

Every ladder has an end; ``None`` says that it is reached, and that this remedy has nothing left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from holdfast.actions.policy import past as history
from holdfast.actions.policy.decisions import Failure, Past
from holdfast.actions.policy.treatments import Treatment, treatment
from holdfast.adjustments import NONE, Adjustments, Window
from holdfast.report.text import plural

MOST_PIECES = 64
#: Steps after which fewer pieces are tried again; four times as many after each time that this ended badly.
FEWER_AFTER, FEWER_TIMES, FEWER_TRIES = 1000, 4, 3
#: Batches that the first skip leaves out; eight times as many where the same comes back. Runs of large models have
#: gone back 100 steps and left out 200 to 500 batches (PaLM, arXiv 2204.02311, section 5.1).
SKIP_FIRST, SKIP_TIMES = 2, 8
#: A numeric fault within so many steps behind the last one is the same one.
NEAR_STEPS = 256
#: Workers of a data loader that nobody has counted.
UNCOUNTED = 4
MOST_WINDOWS = 64
MOST_REASONS = 32


def carried(before: Adjustments, now: Failure) -> Adjustments:
    """What still holds of the adjustments of the start that failed.

    To go back once is enough: as soon as a newer checkpoint was declared, the next start begins there.
    """
    back, declared = before.resume_before, now.scene.saved
    if back is not None and declared is not None and declared >= back:
        return replace(before, resume_before=None, loss_scale=1.0)
    return before


def remedy(before: Adjustments, past: Sequence[Past], now: Failure, *, skips: bool = False) -> Adjustments | None:
    """The adjustments against the failure at hand; None where nothing is left to adjust.

    ``skips``: the user allows that a batch is left out for another reason than its loss.
    """
    kind = treatment(now)
    ladder = _LADDERS.get(kind)
    if ladder is not None:
        return ladder(before, past, now)
    same = history.at_same_step(history.same_fault(past, now), now)
    code = kind is Treatment.CODE
    return _other(before, now, code=code, skips=skips and (code or len(same) > 1)) if same else before


def _pieces(before: Adjustments, past: Sequence[Past], now: Failure) -> Adjustments | None:
    """Twice as many pieces of each batch. Where fewer were just tried, as many as before, and a later next try."""
    step, noted = history.position(now), now.scene.trouble
    trial = before.fewer_from is not None and step is not None and step >= before.fewer_from
    if noted is not None and noted.micro_batches is not None:
        trial = noted.micro_batches < before.micro_batches
    if trial and before.micro_batches > 1:
        tried = sum(
            each.decision.adjustments.fewer_from is not None
            and each.decision.adjustments.micro_batches == before.micro_batches for each in past
        )  # fmt: skip
        later = step + FEWER_AFTER * FEWER_TIMES**tried if step is not None and tried <= FEWER_TRIES else None
        when = f"fewer are tried again at step {later}" if later is not None else "fewer are not tried again"
        return _saying(
            replace(before, fewer_from=later),
            f"half as many pieces did not fit at step {step}: {before.micro_batches} again, and {when}",
        )
    if before.micro_batches >= MOST_PIECES:
        return None
    pieces = 2 * before.micro_batches
    spared = before.micro_batches > 1  # from the second time on
    return _saying(
        replace(before, micro_batches=pieces, fewer_from=(step or 0) + FEWER_AFTER,
                activation_checkpointing=before.activation_checkpointing or spared),
        f"memory ran out{_at(step)}: each rank's batch is worked through in {pieces} pieces, the global batch "
        f"stays the same" + (", and activations are computed again where the script offers it" if spared else ""),
    )  # fmt: skip


def _loaders(before: Adjustments, _past: Sequence[Past], now: Failure) -> Adjustments | None:
    """Half as many workers of data loaders."""
    had = before.loader_workers if before.loader_workers is not None else now.scene.loaders
    if had == 0:
        return None
    workers = (UNCOUNTED if had is None else had) // 2
    return _saying(
        replace(before, loader_workers=workers),
        f"the host's memory ran out{_at(history.position(now))}: data loaders have at most {plural(workers, 'worker')}",
    )


def _back(before: Adjustments, past: Sequence[Past], now: Failure) -> Adjustments | None:
    """Before the fault, past its batches, with a lower scale; further each time that it comes back."""
    span = _span(now)
    if span is None:
        return None if any(history.newest_of(past, Treatment.NUMERICS)) else replace(before, loss_scale=0.5)
    spans = [found for each in history.newest_of(past, Treatment.NUMERICS) if (found := _span(each)) is not None]
    near = [each for each in spans if abs(each.last - span.last) <= NEAR_STEPS]
    width = SKIP_FIRST * SKIP_TIMES ** min(len(near), 4)
    first = max(0, min([span.first, *(each.first for each in near)]) + 1 - width)
    window, back = Window(first, span.last), max(first, 1)
    what = now.scene.trouble.what if now.scene.trouble is not None else now.cause
    return _saying(
        _skipping(replace(before, resume_before=back, loss_scale=max(before.loss_scale / 2, 2**-16)), window),
        f"{what} in the loss at step {span.last}: back to a checkpoint before step {back}, the batches of steps "
        f"{first} to {span.last} are left out, and the loss scale is halved",
    )


def _span(failure: Failure) -> Window | None:
    """The steps in which the loss was no good."""
    noted, step = failure.scene.trouble, history.position(failure)
    if noted is not None:
        return Window(max(min(noted.first, noted.last), 0), max(noted.last, 0))
    return None if step is None else Window(step, step)


def _older(before: Adjustments, _past: Sequence[Past], now: Failure) -> Adjustments | None:
    """From the checkpoint before the one that was loaded."""
    loaded = now.scene.loaded if now.scene.loaded is not None else now.scene.saved
    if not loaded:
        return before
    why = f"{now.cause}: resume from a checkpoint before step {loaded}"
    return _saying(replace(before, resume_before=loaded), why)


def _other(before: Adjustments, now: Failure, *, code: bool, skips: bool) -> Adjustments | None:
    """The same fault at the same step: not the same again, but an older checkpoint; ``skips``: without that batch."""
    known, step = history.saved(now), history.position(now)
    if step is None or known is None or not (known or skips):
        return None if code else before
    wanted = replace(before, resume_before=known) if known else before
    text = f"{now.cause} at step {step} again: resume from a checkpoint before step {known}"
    if skips and before.skips(step):
        return None  # that was tried
    if skips:
        wanted, text = _skipping(wanted, Window(step, step)), f"{text}, and leave out that batch"
    return _saying(wanted, text)


def _skipping(before: Adjustments, window: Window) -> Adjustments:
    """With one more window; those that it covers are not kept."""
    others = tuple(each for each in before.skip if not (window.first <= each.first and each.last <= window.last))
    return replace(before, skip=(*others, window)[-MOST_WINDOWS:])


def _saying(adjustments: Adjustments, reason: str) -> Adjustments:
    return replace(adjustments, reasons=(*adjustments.reasons, reason)[-MOST_REASONS:])


def _at(step: int | None) -> str:
    return "" if step is None else f" at step {step}"


_LADDERS: Mapping[Treatment, Callable[[Adjustments, Sequence[Past], Failure], Adjustments | None]] = {
    Treatment.MEMORY: _pieces,
    Treatment.HOST_MEMORY: _loaders,
    Treatment.NUMERICS: _back,
    Treatment.CHECKPOINT: _older,
}


def latest(past: Sequence[Past]) -> Adjustments:
    """The adjustments under which the start that failed was made."""
    return past[-1].decision.adjustments if past else NONE
