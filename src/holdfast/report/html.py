"""The page of an incident: one file that needs no network, script or server, to be read now or kept for years."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Hashable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from holdfast.findings import Fact, Level, Verdict
from holdfast.report.lanes import in_flight
from holdfast.report.picture import draw
from holdfast.report.ranksets import compress_ranks, fold_findings, rank_label, say_ranks
from holdfast.report.stacks import ThreadTree
from holdfast.report.text import duration, one_line, percent, visible
from holdfast.report.timeline import Lane, Timeline

#: Rows of a table, and groups of stacks, at most; a line says how many more there are.
ROWS = 200
STACKS = 24
STACK_LINES = 80

SYMBOLS = {Level.ERROR: "✗", Level.WARNING: "⚠", Level.NOTE: "•", Level.UNKNOWN: "?"}


class FactRow(msgspec.Struct, frozen=True):
    """One fact that holds for all of ``ranks`` and ``hosts``; ``time`` is the earliest, in Unix seconds."""

    text: str
    origin: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    time: float | None


class SharedStack(msgspec.Struct, frozen=True):
    """One stack and all ranks that have it, innermost frame first; the last ``common`` frames most ranks share."""

    ranks: tuple[int, ...]
    lines: tuple[str, ...]
    common: int
    hidden: int


def incident_page(  # noqa: PLR0913 - the parts of a page, each with a name
    verdict: Verdict,
    timeline: Timeline,
    *,
    title: str,
    facts: Sequence[Fact] = (),
    stacks: Mapping[int, Sequence[str]] | None = None,
    run: Mapping[str, str] | None = None,
    tree: Sequence[ThreadTree] = (),
    undecided: bool = False,
) -> str:
    """The whole page as text, to be written as UTF-8.

    ``title`` names the incident (``incident 0``), ``facts`` are those of hosts, versions and environment, ``stacks``
    holds each rank's Python frames, innermost first (without them those of the lanes are shown), ``run`` is shown as
    it is, key by key, and ``tree`` holds stacks merged over ranks. ``undecided``: that no root was found does
    not mean that nothing failed. Everything is escaped; the size is bounded for any number of ranks.
    """
    script = source("incident.js")
    page = (
        environment()
        .get_template("incident.html")
        .render(
            title=title,
            verdict=verdict,
            head=_head(verdict, undecided=undecided),
            policy=_policy(script),
            style=Markup(source("incident.css")),  # noqa: S704 - our own file
            script=Markup(script),  # noqa: S704 - our own file
            timeline=timeline,
            picture=draw(timeline, verdict.root.subject.rank if verdict.root else None, _named(verdict)),
            consequences=fold_findings(verdict.consequences),
            suspects=fold_findings(verdict.suspects),
            evidence=_fact_rows(verdict.root.evidence) if verdict.root else [],
            facts=_fact_rows(facts),
            stacks=_share_stacks(stacks or _stacks_of(timeline.lanes)),
            run=run or {},
            tree=tree,
            rows=ROWS,
            stacks_shown=STACKS,
        )
    )
    return page + "\n"


@cache
def _templates() -> PackageLoader:
    return PackageLoader("holdfast.report")


@cache
def environment() -> Environment:
    """What templates of pages are rendered in: every text is escaped, and made visible."""
    environment = Environment(
        loader=_templates(),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_plain,
    )
    environment.filters.update(
        ranks=rank_label,
        all_ranks=compress_ranks,
        say_ranks=say_ranks,
        duration=duration,
        percent=percent,
        clock=_clock,
        hosts=_hosts,
        in_flight=in_flight,
        one_line=one_line,
    )
    return environment


def _plain(value: Any) -> Any:
    """What every expression of the template passes through: strange characters become visible, lengths lose digits."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value)
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value


@cache
def source(name: str) -> str:
    """A file beside the templates, as it is."""
    return _templates().get_source(environment(), name)[0]


def _policy(script: str) -> str:
    """The page's own ban: it may load nothing, and run no script but the one whose checksum stands here."""
    checksum = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{checksum}'"


def _head(verdict: Verdict, *, undecided: bool) -> dict[str, str]:
    """Symbol, tone and the headline in two parts: what happened, and where."""
    if verdict.root is not None:
        what, where = _halves(one_line(verdict.root.message))
        return {"symbol": SYMBOLS[verdict.root.level], "tone": str(verdict.root.level), "what": what, "where": where}
    if verdict.suspects:
        return {"symbol": "?", "tone": "unknown", "what": "no root cause could be named", "where": ""}
    if undecided:
        return {"symbol": "?", "tone": "unknown", "what": "it could not be judged", "where": "see what is unseen"}
    limits = "as far as could be seen" if verdict.unseen else ""
    return {"symbol": "✓", "tone": "fine", "what": "nothing failed", "where": limits}


def _halves(sentence: str) -> tuple[str, str]:
    """What happened, for the large type, and the rest, for the line below it: a sentence breaks at its first mark."""
    broken = re.split(r" — |: |; ", sentence, maxsplit=1)
    return broken[0], broken[1] if len(broken) > 1 else ""


def _named(verdict: Verdict) -> set[int]:
    return {claim.subject.rank for claim in verdict.suspects if claim.subject.rank is not None}


def _fact_rows(facts: Sequence[Fact]) -> list[FactRow]:
    """Facts that many ranks or hosts share become one row, in the order of their first appearance."""
    folds: dict[tuple[str, str], list[Fact]] = {}
    for fact in facts:
        folds.setdefault((fact.text, fact.origin), []).append(fact)
    return [
        FactRow(
            text,
            origin,
            tuple(sorted({fact.rank for fact in same if fact.rank is not None})),
            tuple(sorted({fact.host for fact in same if fact.host})),
            min((fact.time for fact in same if fact.time is not None), default=None),
        )
        for (text, origin), same in folds.items()
    ]


def _stacks_of(lanes: Sequence[Lane]) -> dict[int, Sequence[str]]:
    return {lane.rank: lane.stack_lines for lane in lanes if lane.stack_lines}


def _share_stacks(stacks: Mapping[int, Sequence[str]]) -> list[SharedStack]:
    """Ranks with the same stack together, the rarest stack first: whoever stands apart is mostly the one to look at."""
    folds: dict[tuple[str, ...], list[int]] = {}
    for rank in sorted(stacks):
        folds.setdefault(tuple(stacks[rank]), []).append(rank)
    usual = max(folds, key=lambda lines: len(folds[lines]), default=())
    rarest_first = sorted(folds.items(), key=lambda fold: (len(fold[1]), fold[1][0]))
    return [
        SharedStack(
            tuple(ranks),
            lines[:STACK_LINES],
            _common_end(lines, usual) if lines != usual else 0,
            max(0, len(lines) - STACK_LINES),
        )
        for lines, ranks in rarest_first
    ]


def _common_end(lines: Sequence[Hashable], others: Sequence[Hashable]) -> int:
    """How many of the outermost frames are the same in both."""
    count = 0
    for mine, other in zip(reversed(lines), reversed(others), strict=False):
        if mine != other:
            break
        count += 1
    return count


def _hosts(hosts: Sequence[str]) -> str:
    return ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")


def _clock(time: float | None, form: str = "%H:%M:%S.%f") -> str:
    """A Unix time as UTC, to the millisecond; empty where there is none that a calendar knows."""
    if time is None or not math.isfinite(time):
        return ""
    try:
        text = datetime.fromtimestamp(time, UTC).strftime(form)
    except (OverflowError, ValueError, OSError):
        return ""
    return text[:-3] if form.endswith("%f") else text
