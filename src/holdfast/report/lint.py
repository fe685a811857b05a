"""Findings in source code as linters write them: lines for a terminal, GitHub's annotations, SARIF, JUnit."""

from __future__ import annotations

import json
import os
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TextIO
from urllib.parse import quote
from xml.etree import ElementTree as ET

from holdfast.findings import Cause, Finding, Level
from holdfast.report import excerpts
from holdfast.report.text import encodable, plural, visible

_GITHUB = {Level.ERROR: "error", Level.WARNING: "warning"}
_SARIF = {Level.ERROR: "error", Level.WARNING: "warning"}
_COLOURS = {Level.ERROR: "bold red", Level.WARNING: "bold yellow"}
_DIFF = {"+": "green", "-": "red", "@": "cyan"}
#: Continued lines begin so; narrower than this nothing is broken.
_INDENT, _NARROWEST = "    ", 40
_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
#: A rule's name and its finding.
Named = tuple[str, Finding]


def at(file: str, line: int | None) -> str:
    """A line as people name it: ``file.py:3``; of a notebook ``file.ipynb:cell 2:line 3``."""
    return f"{file}:line {line}" if cell_of(file) else f"{file}:{line}"


def cell_of(file: str) -> str:
    """The cell in the name of a place in a notebook; empty where it is none."""
    _, mark, cell = file.partition(".ipynb:")
    return cell if mark else ""


def path_of(file: str) -> str:
    """The file of a place, without the cell."""
    cell = cell_of(file)
    return file.removesuffix(f":{cell}") if cell else file


def placed(origin: str) -> tuple[str, int]:
    """The file and the line of what :func:`at` made; line 0 where there is none."""
    file, _, line = origin.rpartition(":")
    number = line.removeprefix("line ")
    return (file, int(number)) if number.isdecimal() else (origin, 0)


def order(file: str, line: int | None) -> tuple[str, int, int]:
    """By which places are sorted: by file, cell and line."""
    number = cell_of(file).removeprefix("cell ")
    return path_of(file), int(number) if number.isdecimal() else 0, line or 0


Parts = list[tuple[str, str]]


def lines(
    claims: Iterable[Named], *, explain: bool = False, source: Mapping[str, str] = MappingProxyType({})
) -> Iterable[Parts]:
    """``file:line: CODE name: message``, as (text, style); with ``explain`` what it rests on, and what to do.

    ``source`` has the lines of code, by their places.
    """
    for name, claim in claims:
        colour = _COLOURS.get(claim.level, "bold blue")
        yield [(_place(claim), "bold"), (": ", "dim"), (claim.code, colour), (f" {name}: {claim.message}", "")]
        if explain:
            yield from excerpts.of(claim, _place(claim), source, colour)
            for remedy in claim.remedies[:2]:
                yield [("    → ", "green"), (remedy.text, "")]
            yield [("    ? ", "dim"), (f"holdfast explain {claim.code}", "")]


def summary(*, findings: int, excused: int, files: int, lines: int, mendable: int) -> str:
    """What stands below the findings, in one line."""
    found = plural(findings, "finding") if findings else "nothing found"
    out = f", {excused:,} excused" if excused else ""
    mends = f"; --fix mends {mendable:,}" if mendable else ""
    return f"{found}{out} in {plural(files, 'file')}, {lines:,} lines{mends}"


def statistics(claims: Iterable[Named]) -> Iterable[Parts]:
    """How many findings each rule has, the most first."""
    counts = Counter((claim.code, name, claim.level) for name, claim in claims)
    for (code, name, level), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        yield [(f"{count:>6,}  ", "bold"), (f"{code:<8}", _COLOURS.get(level, "bold blue")), (f"  {name}", "")]


def difference(diff: Iterable[str]) -> Iterable[Parts]:
    """The lines of a unified diff."""
    for line in diff:
        yield [(line, _DIFF.get(line[:1], ""))]


def write(rows: Iterable[Parts], file: TextIO) -> None:
    """Write such lines: in colours on a terminal, and plain everywhere else."""
    if file.isatty():
        from holdfast.report.sheet import draw_lines  # noqa: PLC0415 - rich costs 60 ms, and only who looks shall pay

        width = shutil.get_terminal_size().columns
        shown = ([(_shown(text), style) for text, style in parts] for parts in rows)
        draw_lines((line for parts in shown for line in wrapped(parts, width)), file)
        return
    encoding = getattr(file, "encoding", None) or "utf-8"
    file.writelines(encodable(_shown("".join(text for text, _ in parts)), encoding) + "\n" for parts in rows)


def wrapped(parts: Parts, width: int) -> Iterable[Parts]:
    """A row in lines of so many columns, broken between words of its last part; code is left whole."""
    *head, (last, style) = parts
    before = sum(len(text) for text, _ in head)
    if before + len(last) <= width or not last.strip() or excerpts.GUTTER in parts:
        return [parts]
    indent = _INDENT if not head or head[0][0].lstrip() == head[0][0] else f"{_INDENT}  "
    room = max(width, _NARROWEST)
    beside = "x" * before if before < room - len(last.split(" ", 1)[0]) else ""  # a long path has a line of its own
    first, *rest = textwrap.wrap(
        last, room, initial_indent=beside or indent, subsequent_indent=indent, break_on_hyphens=False
    )
    begun = [[*head, (first[before:], style)]] if beside else [head, [(first, style)]]
    return [*begun, *([(line, style)] for line in rest)]


def _shown(text: str) -> str:
    return visible(text).replace("\n", " ")


def github(claims: Iterable[Named]) -> Iterable[str]:
    """Workflow commands that GitHub shows beside the lines of a pull request."""
    for name, claim in claims:
        title = f"{claim.code} {name}"
        file, line, message = _for_machines(claim)
        where = f"file={_escaped(file, in_property=True)},line={line},title={_escaped(title, in_property=True)}"
        yield f"::{_GITHUB.get(claim.level, 'notice')} {where}::{_escaped(message)}"


def _place(claim: Finding) -> str:
    return at(claim.subject.file or "", claim.subject.line)


def _for_machines(claim: Finding) -> tuple[str, int, str]:
    """The file, the line, and what is said there; who shows a notebook by lines of its JSON is given the first."""
    file = claim.subject.file or ""
    cell = cell_of(file)
    if cell:
        return path_of(file), 1, f"{cell}, line {claim.subject.line}: {claim.message}"
    return file, claim.subject.line or 1, claim.message


def _escaped(text: str, *, in_property: bool = False) -> str:
    """As GitHub's runner reads it back: https://github.com/actions/toolkit, packages/core/src/command.ts."""
    text = visible(text)
    for sign, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
        text = text.replace(sign, code)
    return text.replace(":", "%3A").replace(",", "%2C") if in_property else text


def sarif(claims: Sequence[Named], causes: Mapping[str, Cause], version: str) -> str:
    """A log of SARIF 2.1.0 (OASIS), as code scanning of GitHub and editors read it; ``causes`` by their names."""
    codes = sorted({(claim.code, claim.cause) for _, claim in claims})
    at = {code: number for number, (code, _) in enumerate(codes)}
    driver = {"name": "holdfast", "version": version, "rules": [_descriptor(causes[cause]) for _, cause in codes]}
    results = [_result(name, claim, at[claim.code]) for name, claim in claims]
    run = {"tool": {"driver": driver}, "results": results, "columnKind": "unicodeCodePoints"}
    return json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _descriptor(cause: Cause) -> dict[str, Any]:
    """What GitHub asks for of each rule: https://docs.github.com/code-security, "SARIF support for code scanning"."""
    help_text = "\n".join(f"- {remedy.text}" for remedy in cause.remedies) or cause.summary
    return {
        "id": cause.code,
        "name": cause.name,
        "shortDescription": {"text": cause.summary},
        "fullDescription": {"text": cause.what_happens},
        "help": {"text": help_text, "markdown": help_text},
    }


def _result(name: str, claim: Finding, at: int) -> dict[str, Any]:
    file, line, message = _for_machines(claim)
    place = {"artifactLocation": {"uri": quote(os.fsencode(file))}, "region": {"startLine": line}}
    return {
        "ruleId": claim.code,
        "ruleIndex": at,
        "level": _SARIF.get(claim.level, "note"),
        "message": {"text": f"{name}: {message}"},
        "locations": [{"physicalLocation": place}],
    }


def junit(claims: Sequence[Named]) -> str:
    """A test suite in which each finding is a test that failed, for servers that show nothing else."""
    suite = ET.Element("testsuite", name="holdfast lint", tests=str(max(1, len(claims))), failures=str(len(claims)))
    for name, claim in claims:
        case = ET.SubElement(suite, "testcase", classname=_shown(claim.subject.file or ""), name=f"{claim.code} {name}")
        failure = ET.SubElement(case, "failure", message=_shown(claim.message), type=claim.level.value)
        failure.text = _shown(_place(claim))
    if not claims:
        ET.SubElement(suite, "testcase", classname="holdfast", name="lint")
    return ET.tostring(suite, encoding="unicode", xml_declaration=True)
