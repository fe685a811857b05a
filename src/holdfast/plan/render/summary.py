"""The view of a plan and its terminal report.

Nothing here depends on how a plan is made: the caller fills in :class:`PlanView`. ``page`` renders
the HTML.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.core.text import format_duration, format_percent
from holdfast.report.document import ReportDocument, ReportRow, ReportSection

GIB = 1 << 30
#: Letter and colour of each part of memory; the bar shows the letters, so colours are optional.
PARTS = {
    "parameters": ("P", "blue"),
    "master": ("M", "bright_blue"),
    "gradients": ("G", "green"),
    "optimizer": ("O", "yellow"),
    "activations": ("A", "magenta"),
    "temporary": ("T", "bright_magenta"),
    "logits": ("L", "cyan"),
    "gathered": ("W", "bright_cyan"),
    "buffers": ("B", "bright_green"),
    "reserve": ("r", "white"),
    "framework": ("f", "bright_black"),
}
#: Description of each part.
PART_DESCRIPTIONS = {
    "parameters": "weights kept between steps",
    "master": "fp32 master copy for the optimizer",
    "gradients": "kept until the optimizer step",
    "optimizer": "optimizer states",
    "activations": "saved by forward for backward",
    "temporary": "one recomputed layer, its inner gradients, temporaries of the optimizer",
    "logits": "all copies made by the loss",
    "gathered": "temporarily gathered weights (all-gather)",
    "buffers": "communication buffers",
    "reserve": "cached by the allocator (estimate)",
    "framework": "CUDA context, NCCL communicators (rule of thumb)",
}
#: Colours of the time spans, in order.
_TIME_COLOURS = tuple(
    """
    green yellow magenta cyan blue red bright_yellow bright_magenta
    """.split()
)
BAR_COLUMNS = 58
SYMBOLS = {"fits": ("✓", "fine"), "tight": ("⚠", "warning"), "does not fit": ("✗", "error")}


class MemoryBar(msgspec.Struct, frozen=True):
    """Memory of the GPUs of one stage or kind: bytes by part, and bytes of the GPU."""

    name: str
    parts: tuple[tuple[str, int], ...]
    memory: int
    #: The moment of the peak.
    moment: str = ""

    @property
    def total(self) -> int:
        """Return the bytes of all parts."""
        return sum(nbytes for _, nbytes in self.parts)


class TimeSpan(msgspec.Struct, frozen=True):
    """Seconds of one part of a step; ``hidden`` seconds overlap compute and are not in the sum."""

    name: str
    seconds: float
    hidden: float = 0.0


class StepSummary(msgspec.Struct, frozen=True):
    """A step: its time spans and the resulting throughput."""

    seconds: float
    spans: tuple[TimeSpan, ...]
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    error: str


class ScalePoint(msgspec.Struct, frozen=True):
    """A point of the scaling curve.

    ``reason``: why it is less efficient than the one before; ``fit``: whether it fits.
    """

    gpus: int
    tokens_per_s: float
    efficiency: float
    reason: str = ""
    fit: str = "fits"


class Suggestion(msgspec.Struct, frozen=True):
    """An alternative: the change, its effect, a note on its cost, and its command."""

    change: str
    effect: str
    note: str = ""
    command: str = ""
    details: tuple[str, ...] = ()


class BatchShare(msgspec.Struct, frozen=True):
    """Ranks with equal batch shares."""

    name: str
    ranks: str
    samples: int
    micro_batches: tuple[int, ...]
    busy_s: float


class BatchSummary(msgspec.Struct, frozen=True):
    """A batch allocated to unequal GPUs."""

    batch: int
    step_s: float
    equal_s: float | None
    shares: tuple[BatchShare, ...]
    explanation: str


class GroupDrawing(msgspec.Struct, frozen=True):
    """One kind of process group; ``group_numbers`` are the group numbers of rank 0, 1, …"""

    title: str
    caption: str
    group_numbers: tuple[int, ...]


class PlanView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything shown of a plan. ``fit``: fits, tight or does not fit."""

    model: str
    cluster: str
    fit: str
    headline: str
    setup: tuple[tuple[str, str], ...]
    bars: tuple[MemoryBar, ...]
    memory_error: str
    step: StepSummary | None = None
    no_time_reason: str = ""
    fit_options: tuple[Suggestion, ...] = ()
    layouts: tuple[Suggestion, ...] = ()
    rejected: tuple[str, ...] = ()
    curve: tuple[ScalePoint, ...] = ()
    curve_note: str = ""
    remedies: tuple[Suggestion, ...] = ()
    shortfall: tuple[str, ...] = ()
    batch: BatchSummary | None = None
    drawings: tuple[GroupDrawing, ...] = ()
    world_size: int = 0
    per_node: int = 1
    groups: tuple[str, ...] = ()
    written: tuple[tuple[str, str], ...] = ()
    omitted: tuple[str, ...] = ()
    framework: str = ""
    framework_reasons: tuple[Suggestion, ...] = ()
    warnings: tuple[str, ...] = ()
    simulation: tuple[str, ...] = ()


def plan_document(view: PlanView) -> ReportDocument:
    """Return the terminal report: the result first, then the details."""
    symbol, tone = SYMBOLS[view.fit]
    sections = [
        ReportSection(label, (*rows, ReportRow(""))) for label, rows in _sections(view) if rows
    ]
    return ReportDocument(symbol, view.headline, tone, tuple(sections))


def _sections(view: PlanView) -> Iterator[tuple[str, list[ReportRow]]]:
    yield "setup", [ReportRow(text, mark=name) for name, text in view.setup]
    yield "warnings", [ReportRow(text) for text in view.warnings]
    yield "memory", list(_memory_rows(view))
    yield "simulation", [ReportRow(text) for text in view.simulation]
    yield "time", list(_time_rows(view))
    yield "batch", list(_batch_rows(view.batch)) if view.batch else []
    yield "ways to make it fit", list(_suggestion_rows(view.fit_options))
    yield "layouts", list(_suggestion_rows(view.layouts))
    yield "rejected alternatives", [ReportRow(text, mark="•") for text in view.rejected]
    yield "measured", [ReportRow(text) for text in view.shortfall]
    yield "scaling", list(_curve_rows(view))
    yield "speed-ups", list(_suggestion_rows(view.remedies))
    yield "groups", [ReportRow(text) for text in view.groups]
    if view.written:
        yield (
            "framework",
            [ReportRow(view.framework, style="strong"), *_suggestion_rows(view.framework_reasons)],
        )
    yield "written", list(_written_rows(view))


# ---- memory


def _memory_rows(view: PlanView) -> Iterator[ReportRow]:
    """Yield a bar for each kind of rank, then a table of the parts."""
    widest = max(max(bar.total, bar.memory) for bar in view.bars)
    for bar in view.bars:
        yield ReportRow("", mark=bar.name, pieces=tuple(stacked_cells(bar, widest)))
    yield ReportRow("")
    yield from _memory_table(view.bars)
    yield ReportRow(view.memory_error, style="aside")


def stacked_cells(
    bar: MemoryBar, widest: int, columns: int = BAR_COLUMNS
) -> Iterator[tuple[str, str]]:
    """Yield the cells of a bar; ``│`` marks the GPU's memory, dots mark free memory."""
    cells: list[tuple[str, str]] = []
    done = 0
    sizes = dict(bar.parts)
    for name, (letter, colour) in PARTS.items():
        done += sizes.get(name, 0)
        cells += [(letter, f"black on {colour}")] * (round(done * columns / widest) - len(cells))
    limit = round(bar.memory * columns / widest)
    cells += [("·", "dim")] * (limit - len(cells))
    cells.insert(limit, ("│", "bold red" if bar.total > bar.memory else "bold"))
    yield from cells


def _memory_table(bars: Sequence[MemoryBar]) -> Iterator[ReportRow]:
    names = dict.fromkeys(name for bar in bars for name, _ in bar.parts)
    sizes = [dict(bar.parts) for bar in bars]
    order = sorted(
        names, key=lambda name: -max(size_by_part.get(name, 0) for size_by_part in sizes)
    )
    if len(bars) > 1:
        yield ReportRow("  " + "".join(f"{bar.name:>12}" for bar in bars), style="aside")
    for name in order:
        letter, colour = PARTS[name]
        cells = "".join(f"{size_by_part.get(name, 0) / GIB:12.1f}" for size_by_part in sizes)
        share = (
            ""
            if len(bars) > 1
            else f"   {format_percent(sizes[0].get(name, 0) / bars[0].total):>5}"
        )
        yield ReportRow(
            "", mark=name, pieces=((letter, f"black on {colour}"), (f" {cells}{share}", ""))
        )
    yield ReportRow(
        "  " + "".join(f"{bar.total / GIB:12.1f}" for bar in bars) + " GiB",
        mark="total",
        style="strong",
    )
    yield ReportRow(
        "  " + "".join(f"{bar.memory / GIB:12.1f}" for bar in bars) + " GiB", mark="GPU memory"
    )


# ---- time


def _time_rows(view: PlanView) -> Iterator[ReportRow]:
    step = view.step
    if step is None:
        if view.no_time_reason:
            yield ReportRow(view.no_time_reason)
        return
    cells: list[tuple[str, str]] = []
    done = 0.0
    for number, span in enumerate(step.spans):
        done += span.seconds
        cells += [(_letter(number), f"black on {_TIME_COLOURS[number % len(_TIME_COLOURS)]}")] * (
            round(done * BAR_COLUMNS / step.seconds) - len(cells)
        )
    yield ReportRow("", mark="one step", pieces=tuple(cells))
    yield ReportRow("")
    for number, span in enumerate(step.spans):
        hidden = (
            f"   + {format_duration(span.hidden)} overlapped"
            if span.hidden > 0.0005 * step.seconds
            else ""
        )
        text = (
            f" {format_duration(span.seconds):>12}   "
            f"{format_percent(span.seconds / step.seconds):>5}{hidden}"
        )
        yield ReportRow(
            "",
            mark=span.name,
            pieces=(
                (_letter(number), f"black on {_TIME_COLOURS[number % len(_TIME_COLOURS)]}"),
                (text, ""),
            ),
        )
    yield ReportRow(f"  {format_duration(step.seconds):>12}", mark="total", style="strong")
    yield ReportRow(
        f"{step.tokens_per_s:,.0f} tokens/s, {step.tokens_per_s_per_gpu:,.0f} per GPU, MFU "
        f"{step.mfu:.0%}",
        mark="throughput",
        style="strong",
    )
    yield ReportRow(step.error, style="aside")


def _letter(number: int) -> str:
    return "abcdefghijklmnop"[number % 16]


def _batch_rows(batch: BatchSummary) -> Iterator[ReportRow]:
    for share in batch.shares:
        sizes = " + ".join(map(str, share.micro_batches[:6])) + (
            " + …" if len(share.micro_batches) > 6 else ""
        )
        text = f"{share.samples:4} samples each, as {sizes}; busy {format_duration(share.busy_s)}"
        yield ReportRow(text, mark=f"{share.ranks}, {share.name}")
    comparison = (
        f"; with equal shares {format_duration(batch.equal_s)}"
        if batch.equal_s
        else "; equal shares do not fit"
    )
    yield ReportRow(
        f"{batch.batch} samples in {format_duration(batch.step_s)}{comparison}",
        mark="together",
        style="strong",
    )
    yield ReportRow(batch.explanation, style="aside")


# ---- alternatives


def _suggestion_rows(suggestions: Sequence[Suggestion]) -> Iterator[ReportRow]:
    for number, suggestion in enumerate(suggestions, 1):
        mark = f"{number}." if len(suggestions) > 1 else ""
        yield ReportRow(
            f"{suggestion.change}: {suggestion.effect}" if suggestion.effect else suggestion.change,
            mark=mark,
            aside=suggestion.note,
        )
        for line in suggestion.details:
            yield ReportRow(line, style="aside")
        if suggestion.command:
            yield ReportRow(suggestion.command, style="command")


def _curve_rows(view: PlanView) -> Iterator[ReportRow]:
    for point in view.curve:
        cells = round(point.efficiency * 24)
        bar = (("█" * cells, "green"), ("·" * (24 - cells), "dim"))
        fit = "" if point.fit in ("", "fits") else f"   {point.fit}"
        text = f" {point.efficiency:5.0%} {point.tokens_per_s:13,.0f} tokens/s{fit}"
        yield ReportRow("", mark=f"{point.gpus:,} GPUs", pieces=(*bar, (text, "")))
        if point.reason:
            yield ReportRow(point.reason, style="aside")
    if view.curve_note:
        yield ReportRow(view.curve_note, style="aside")


def _written_rows(view: PlanView) -> Iterator[ReportRow]:
    for path, purpose in view.written:
        yield ReportRow(path, style="path")
        yield ReportRow(purpose, style="aside")
    for text in view.omitted:
        yield ReportRow(text, mark="omitted")
