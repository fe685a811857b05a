"""A plan as people read it: what is shown of it, and the sheet for a terminal. The page is in ``plan_page``.

Nothing here knows how a plan is made: whoever made it fills in :class:`Shown`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.report.document import Document, Row, Section
from holdfast.report.text import duration, percent

GIB = 1 << 30
#: Letter and colour of each part of memory: letters stand in the bar, so that it can be read without colours.
PARTS = {
    "parameters": ("P", "blue"), "master": ("M", "bright_blue"), "gradients": ("G", "green"),
    "optimizer": ("O", "yellow"), "activations": ("A", "magenta"), "temporary": ("T", "bright_magenta"),
    "logits": ("L", "cyan"), "gathered": ("W", "bright_cyan"), "buffers": ("B", "bright_green"),
    "reserve": ("r", "white"), "framework": ("f", "bright_black"),
}  # fmt: skip
#: What each part is.
MEANING = {
    "parameters": "weights as they are held from step to step", "master": "their copy in fp32 for the optimizer",
    "gradients": "as they are kept until the optimizer's step", "optimizer": "what it keeps for each weight",
    "activations": "what forward keeps for backward",
    "temporary": "one layer computed again, gradients inside it, the optimizer's own numbers",
    "logits": "all copies of them that the loss makes", "gathered": "weights that are whole for a while",
    "buffers": "what is sent and received", "reserve": "what the allocator keeps beside tensors: an estimate",
    "framework": "CUDA's context, NCCL's communicators: a rule of thumb",
}  # fmt: skip
#: Colours of parts of time, in their order.
_TIMES = ("green", "yellow", "magenta", "cyan", "blue", "red", "bright_yellow", "bright_magenta")
BAR = 58
SYMBOLS = {"fits": ("✓", "fine"), "tight": ("⚠", "warning"), "does not fit": ("✗", "error")}


class Bar(msgspec.Struct, frozen=True):
    """Memory of the GPUs that have one name (a stage, a kind): bytes by part, and of the GPU."""

    name: str
    parts: tuple[tuple[str, int], ...]
    memory: int
    #: When that is, and the part that it may be off by.
    moment: str = ""

    @property
    def total(self) -> int:
        """Of all parts."""
        return sum(nbytes for _, nbytes in self.parts)


class Span(msgspec.Struct, frozen=True):
    """A part of a step in seconds; ``hidden`` ones run beside computing and are not in the sum."""

    name: str
    seconds: float
    hidden: float = 0.0


class Speed(msgspec.Struct, frozen=True):
    """A step: what it goes to, and what comes of it."""

    seconds: float
    spans: tuple[Span, ...]
    tokens_per_s: float
    per_gpu: float
    mfu: float
    error: str


class Point(msgspec.Struct, frozen=True):
    """A size of a curve; ``reason``: why it is less efficient than the one before, ``answer``: whether it fits."""

    gpus: int
    tokens_per_s: float
    efficiency: float
    reason: str = ""
    answer: str = "fits"


class Choice(msgspec.Struct, frozen=True):
    """Something else that could be done: what it is, what it gives, what it costs or why it is not better."""

    what: str
    gives: str
    because: str = ""
    command: str = ""
    more: tuple[str, ...] = ()


class Share(msgspec.Struct, frozen=True):
    """Ranks that do the same in a step."""

    name: str
    ranks: str
    samples: int
    micro_batches: tuple[int, ...]
    busy_s: float


class Dealt(msgspec.Struct, frozen=True):
    """A batch over unequal GPUs."""

    batch: int
    step_s: float
    equal_s: float | None
    shares: tuple[Share, ...]
    how: str


class Drawn(msgspec.Struct, frozen=True):
    """One kind of process group: its ``numbers`` are those of the groups, of rank 0, 1, …"""

    title: str
    said: str
    numbers: tuple[int, ...]


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """All that is shown of a plan. ``answer``: fits, tight or does not fit; ``margin``: bytes left, and their error."""

    model: str
    cluster: str
    answer: str
    headline: str
    setup: tuple[tuple[str, str], ...]
    bars: tuple[Bar, ...]
    memory_error: str
    speed: Speed | None = None
    no_speed: str = ""
    fixes: tuple[Choice, ...] = ()
    layouts: tuple[Choice, ...] = ()
    losers: tuple[str, ...] = ()
    curve: tuple[Point, ...] = ()
    curve_note: str = ""
    remedies: tuple[Choice, ...] = ()
    shortfall: tuple[str, ...] = ()
    dealt: Dealt | None = None
    drawn: tuple[Drawn, ...] = ()
    world: int = 0
    per_node: int = 1
    groups: tuple[str, ...] = ()
    written: tuple[tuple[str, str], ...] = ()
    unsaid: tuple[str, ...] = ()
    framework: str = ""
    speaking: tuple[Choice, ...] = ()
    traps: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()


def document(shown: Shown) -> Document:
    """The sheet: the answer first, then what it rests on."""
    symbol, tone = SYMBOLS[shown.answer]
    sections = [Section(label, (*rows, Row(""))) for label, rows in _sections(shown) if rows]
    return Document(symbol, shown.headline, tone, tuple(sections))


def _sections(shown: Shown) -> Iterator[tuple[str, list[Row]]]:
    yield "setup", [Row(text, mark=name) for name, text in shown.setup]
    yield "beware", [Row(text) for text in shown.traps]
    yield "memory", list(_memory(shown))
    yield "as run", [Row(text) for text in shown.seen]
    yield "time", list(_time(shown))
    yield "batch", list(_dealt(shown.dealt)) if shown.dealt else []
    yield "would fit", list(_choices(shown.fixes))
    yield "layouts", list(_choices(shown.layouts))
    yield "others lost", [Row(text, mark="•") for text in shown.losers]
    yield "measured", [Row(text) for text in shown.shortfall]
    yield "scaling", list(_curve(shown))
    yield "remedy", list(_choices(shown.remedies))
    yield "groups", [Row(text) for text in shown.groups]
    if shown.written:
        yield "framework", [Row(shown.framework, style="strong"), *_choices(shown.speaking)]
    yield "written", list(_written(shown))


# ---- memory


def _memory(shown: Shown) -> Iterator[Row]:
    """A bar for each kind of rank, then a table of what they are made of."""
    widest = max(max(bar.total, bar.memory) for bar in shown.bars)
    for bar in shown.bars:
        yield Row("", mark=bar.name, pieces=tuple(stacked(bar, widest)))
    yield Row("")
    yield from _table(shown.bars)
    yield Row(shown.memory_error, style="aside")


def stacked(bar: Bar, widest: int, columns: int = BAR) -> Iterator[tuple[str, str]]:
    """Cells of a bar, letters on colour; ``│`` is where the GPU ends, and dots are what is left of it."""
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


def _table(bars: Sequence[Bar]) -> Iterator[Row]:
    names = dict.fromkeys(name for bar in bars for name, _ in bar.parts)
    sizes = [dict(bar.parts) for bar in bars]
    order = sorted(names, key=lambda name: -max(each.get(name, 0) for each in sizes))
    if len(bars) > 1:
        yield Row("  " + "".join(f"{bar.name:>12}" for bar in bars), style="aside")
    for name in order:
        letter, colour = PARTS[name]
        cells = "".join(f"{each.get(name, 0) / GIB:12.1f}" for each in sizes)
        share = "" if len(bars) > 1 else f"   {percent(sizes[0].get(name, 0) / bars[0].total):>5}"
        yield Row("", mark=name, pieces=((letter, f"black on {colour}"), (f" {cells}{share}", "")))
    yield Row("  " + "".join(f"{bar.total / GIB:12.1f}" for bar in bars) + " GiB", mark="total", style="strong")
    yield Row("  " + "".join(f"{bar.memory / GIB:12.1f}" for bar in bars) + " GiB", mark="the GPU has")


# ---- time


def _time(shown: Shown) -> Iterator[Row]:
    speed = shown.speed
    if speed is None:
        if shown.no_speed:
            yield Row(shown.no_speed)
        return
    cells: list[tuple[str, str]] = []
    done = 0.0
    for number, span in enumerate(speed.spans):
        done += span.seconds
        cells += [(_letter(number), f"black on {_TIMES[number % len(_TIMES)]}")] * (
            round(done * BAR / speed.seconds) - len(cells)
        )
    yield Row("", mark="a step", pieces=tuple(cells))
    yield Row("")
    for number, span in enumerate(speed.spans):
        hidden = f"   and {duration(span.hidden)} hidden" if span.hidden > 0.0005 * speed.seconds else ""
        text = f" {duration(span.seconds):>12}   {percent(span.seconds / speed.seconds):>5}{hidden}"
        yield Row(
            "", mark=span.name, pieces=((_letter(number), f"black on {_TIMES[number % len(_TIMES)]}"), (text, ""))
        )
    yield Row(f"  {duration(speed.seconds):>12}", mark="total", style="strong")
    yield Row(f"{speed.tokens_per_s:,.0f} tokens/s, {speed.per_gpu:,.0f} a GPU, MFU {speed.mfu:.0%}", mark="throughput",
              style="strong")  # fmt: skip
    yield Row(speed.error, style="aside")


def _letter(number: int) -> str:
    return "abcdefghijklmnop"[number % 16]


def _dealt(dealt: Dealt) -> Iterator[Row]:
    for share in dealt.shares:
        sizes = " + ".join(map(str, share.micro_batches[:6])) + (" + …" if len(share.micro_batches) > 6 else "")
        text = f"{share.samples:4} samples each, as {sizes}; busy {duration(share.busy_s)}"
        yield Row(text, mark=f"{share.ranks}, {share.name}")
    beside = f"; with equal shares {duration(dealt.equal_s)}" if dealt.equal_s else "; equal shares do not fit"
    yield Row(f"{dealt.batch} samples in {duration(dealt.step_s)}{beside}", mark="together", style="strong")
    yield Row(dealt.how, style="aside")


# ---- what else


def _choices(choices: Sequence[Choice]) -> Iterator[Row]:
    for number, each in enumerate(choices, 1):
        mark = f"{number}." if len(choices) > 1 else ""
        yield Row(f"{each.what}: {each.gives}" if each.gives else each.what, mark=mark, aside=each.because)
        for line in each.more:
            yield Row(line, style="aside")
        if each.command:
            yield Row(each.command, style="command")


def _curve(shown: Shown) -> Iterator[Row]:
    for point in shown.curve:
        cells = round(point.efficiency * 24)
        bar = (("█" * cells, "green"), ("·" * (24 - cells), "dim"))
        room = "" if point.answer in ("", "fits") else f"   {point.answer}"
        text = f" {point.efficiency:5.0%} {point.tokens_per_s:13,.0f} tokens/s{room}"
        yield Row("", mark=f"{point.gpus:,} GPUs", pieces=(*bar, (text, "")))
        if point.reason:
            yield Row(point.reason, style="aside")
    if shown.curve_note:
        yield Row(shown.curve_note, style="aside")


def _written(shown: Shown) -> Iterator[Row]:
    for path, purpose in shown.written:
        yield Row(path, style="path")
        yield Row(purpose, style="aside")
    for text in shown.unsaid:
        yield Row(text, mark="not said")
