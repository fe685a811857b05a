"""Render findings in source code: terminal lines, GitHub annotations, SARIF, JUnit."""

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

import msgspec

from holdfast.core.findings import Cause, Finding, Level
from holdfast.core.text import encodable, escape_invisible, pluralize
from holdfast.report import source_excerpts
from holdfast.report.sheet import draw_lines

_GITHUB = {Level.ERROR: "error", Level.WARNING: "warning"}
_SARIF = {Level.ERROR: "error", Level.WARNING: "warning"}
_COLOURS = {Level.ERROR: "bold red", Level.WARNING: "bold yellow"}
_DIFF = {"+": "green", "-": "red", "@": "cyan"}
#: Indentation of continuation lines, and the minimum width for wrapping.
_INDENT, _MIN_COLUMNS = "    ", 40
_SARIF_SCHEMA = "https://json.schemastore.org/sarif_log-2.1.0.json"
#: A line as (text, style) pairs.
StyledLine = list[tuple[str, str]]


class CodeSuggestion(msgspec.Struct, frozen=True):
    """How to change the code of a finding, with the lines of a unified diff if only lines move."""

    text: str
    diff: tuple[str, ...] = ()


class SourceFinding(msgspec.Struct, frozen=True):
    """A finding in source code, the name of its rule, and its column, from 1 in characters."""

    rule: str
    finding: Finding
    column: int | None = None
    suggestion: CodeSuggestion | None = None


def format_location(file: str, line: int | None) -> str:
    """Return ``file.py:3``, or for a notebook ``file.ipynb:cell 2:line 3``."""
    return f"{file}:line {line}" if cell_of(file) else f"{file}:{line}"


def cell_of(file: str) -> str:
    """Return the cell in a notebook location; empty for other files."""
    _, mark, cell = file.partition(".ipynb:")
    return cell if mark else ""


def path_of(file: str) -> str:
    """Return the file of a location, without the cell."""
    cell = cell_of(file)
    return file.removesuffix(f":{cell}") if cell else file


def parse_location(origin: str) -> tuple[str, int]:
    """Return file and line of a :func:`format_location` result; line 0 without one."""
    file, _, line = origin.rpartition(":")
    number = line.removeprefix("line ")
    return (file, int(number)) if number.isdecimal() else (origin, 0)


def location_sort_key(file: str, line: int | None) -> tuple[str, int, int]:
    """Return the sort key of a location: file, cell and line."""
    number = cell_of(file).removeprefix("cell ")
    return path_of(file), int(number) if number.isdecimal() else 0, line or 0


def finding_lines(
    claims: Iterable[SourceFinding],
    *,
    explain: bool = False,
    source: Mapping[str, str] = MappingProxyType({}),
) -> Iterable[StyledLine]:
    """Yield ``file:line:column: CODE name: message``.

    ``explain`` adds source lines and remedies; ``source`` maps locations to source lines.
    """
    for reported in claims:
        claim = reported.finding
        colour = _COLOURS.get(claim.level, "bold blue")
        yield [
            (_position(reported), "bold"),
            (": ", "dim"),
            (claim.code, colour),
            (f" {reported.rule}: {claim.message}", ""),
        ]
        if explain:
            yield from source_excerpts.excerpt_rows(claim, _location(claim), source, colour)
            yield from _remedy_lines(reported)
            yield [("    ? ", "dim"), (f"holdfast explain {claim.code}", "")]


def _remedy_lines(reported: SourceFinding) -> Iterable[StyledLine]:
    """Yield the suggestion for the code, if any, and then remedies of the cause."""
    suggestion, remedies = reported.suggestion, reported.finding.remedies[:2]
    if suggestion is not None:
        yield [("    → ", "green"), (suggestion.text, "")]
        yield from ([("      ", ""), *line] for line in diff_lines(suggestion.diff[2:]))
        remedies = remedies[1:]
    for remedy in remedies:
        yield [("    → ", "green"), (remedy.text, "")]


def summarize(*, findings: int, suppressed: int, files: int, lines: int, fixable: int) -> str:
    """Return the line below the findings."""
    found = pluralize(findings, "finding") if findings else "No findings"
    hidden = f" ({suppressed:,} suppressed)" if suppressed else ""
    fixes = f"; {fixable:,} fixable with --fix" if fixable else ""
    return f"{found}{hidden} in {pluralize(files, 'file')}, {lines:,} lines{fixes}"


def count_lines(claims: Iterable[SourceFinding]) -> Iterable[StyledLine]:
    """Yield the number of findings per rule, the most frequent first."""
    counts = Counter(
        (reported.finding.code, reported.rule, reported.finding.level) for reported in claims
    )
    for (code, name, level), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        yield [
            (f"{count:>6,}  ", "bold"),
            (f"{code:<8}", _COLOURS.get(level, "bold blue")),
            (f"  {name}", ""),
        ]


def diff_lines(diff: Iterable[str]) -> Iterable[StyledLine]:
    """Yield the styled lines of a unified diff."""
    for line in diff:
        yield [(line, _DIFF.get(line[:1], ""))]


def write_lines(rows: Iterable[StyledLine], file: TextIO) -> None:
    """Write styled lines: coloured and wrapped on a terminal, plain elsewhere."""
    if file.isatty():
        width = shutil.get_terminal_size().columns
        shown = ([(_printable(text), style) for text, style in parts] for parts in rows)
        draw_lines((line for parts in shown for line in wrap_line(parts, width)), file)
        return
    encoding = getattr(file, "encoding", None) or "utf-8"
    file.writelines(
        encodable(_printable("".join(text for text, _ in parts)), encoding) + "\n" for parts in rows
    )


def wrap_line(parts: StyledLine, width: int) -> Iterable[StyledLine]:
    """Wrap a line to ``width`` columns between words of its last part; code is not wrapped."""
    *head, (last, style) = parts
    before = sum(len(text) for text, _ in head)
    if before + len(last) <= width or not last.strip() or source_excerpts.GUTTER in parts:
        return [parts]
    indent = _INDENT if not head or head[0][0].lstrip() == head[0][0] else f"{_INDENT}  "
    columns = max(width, _MIN_COLUMNS)
    # A long path gets a separate line.
    beside = "x" * before if before < columns - len(last.split(" ", 1)[0]) else ""
    first, *rest = textwrap.wrap(
        last,
        columns,
        initial_indent=beside or indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    begun = [[*head, (first[before:], style)]] if beside else [head, [(first, style)]]
    return [*begun, *([(line, style)] for line in rest)]


def _printable(text: str) -> str:
    return escape_invisible(text).replace("\n", " ")


def github_commands(claims: Iterable[SourceFinding]) -> Iterable[str]:
    """Yield workflow commands, which GitHub shows beside the lines of a pull request."""
    for reported in claims:
        claim = reported.finding
        title = f"{claim.code} {reported.rule}"
        file, line, column, message = _line_location(reported)
        file, title = (_escape_command(text, in_property=True) for text in (file, title))
        place = f"line={line},col={column}" if column else f"line={line}"
        properties = f"file={file},{place},title={title}"
        yield f"::{_GITHUB.get(claim.level, 'notice')} {properties}::{_escape_command(message)}"


def _location(claim: Finding) -> str:
    return format_location(claim.subject.file or "", claim.subject.line)


def _position(reported: SourceFinding) -> str:
    column = "" if reported.column is None else f":{reported.column}"
    return f"{_location(reported.finding)}{column}"


def _line_location(reported: SourceFinding) -> tuple[str, int, int | None, str]:
    """Return file, line, column and message; in a notebook line 1 and the cell as text."""
    claim = reported.finding
    file = claim.subject.file or ""
    cell = cell_of(file)
    if cell:
        return path_of(file), 1, None, f"{cell}, line {claim.subject.line}: {claim.message}"
    return file, claim.subject.line or 1, reported.column, claim.message


def _escape_command(text: str, *, in_property: bool = False) -> str:
    """Escape a value as GitHub does (actions/toolkit, packages/core/src/command.ts)."""
    text = escape_invisible(text)
    for sign, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
        text = text.replace(sign, code)
    return text.replace(":", "%3A").replace(",", "%2C") if in_property else text


def sarif_log(claims: Sequence[SourceFinding], causes: Mapping[str, Cause], version: str) -> str:
    """Return a SARIF 2.1.0 log for GitHub code scanning and editors; ``causes`` by name."""
    rules = {reported.rule: reported.finding.cause for reported in claims}
    driver = {
        "name": "holdfast",
        "version": version,
        "rules": [_sarif_rule(name, causes[cause]) for name, cause in rules.items()],
    }
    results = [_sarif_result(reported, list(rules).index(reported.rule)) for reported in claims]
    run = {"tool": {"driver": driver}, "results": results, "columnKind": "unicodeCodePoints"}
    return json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _sarif_rule(name: str, cause: Cause) -> dict[str, Any]:
    """Return the properties that GitHub requires ("SARIF support for code scanning")."""
    help_text = "\n".join(f"- {remedy.text}" for remedy in cause.remedies) or cause.summary
    return {
        "id": name,
        "name": cause.name,
        "shortDescription": {"text": cause.summary},
        "fullDescription": {"text": cause.what_happens},
        "help": {"text": help_text, "markdown": help_text},
        "properties": {"tags": [cause.code]},
    }


def _sarif_result(reported: SourceFinding, at: int) -> dict[str, Any]:
    """Return a result with the lines that led to it as related locations and as a code flow."""
    claim = reported.finding
    file, line, column, message = _line_location(reported)
    steps = [
        _sarif_location(path_of(step_file), 1 if cell_of(step_file) else step_line, None, fact.text)
        for fact in claim.evidence
        for step_file, step_line in [parse_location(fact.origin)]
        if step_line
    ]
    result = {
        "ruleId": reported.rule,
        "ruleIndex": at,
        "level": _SARIF.get(claim.level, "note"),
        "message": {"text": f"{claim.code}: {message}"},
        "locations": [_sarif_location(file, line, column)],
    }
    if steps:
        last = _sarif_location(file, line, column, message)
        flow = [{"location": step} for step in (*steps, last)]
        result["relatedLocations"] = [{"id": number, **step} for number, step in enumerate(steps)]
        result["codeFlows"] = [{"threadFlows": [{"locations": flow}]}]
    return result


def _sarif_location(file: str, line: int, column: int | None, message: str = "") -> dict[str, Any]:
    region = {"startLine": line} | ({"startColumn": column} if column else {})
    place = {"artifactLocation": {"uri": quote(os.fsencode(file))}, "region": region}
    return {"physicalLocation": place} | ({"message": {"text": message}} if message else {})


def junit_suite(claims: Sequence[SourceFinding]) -> str:
    """Return a JUnit test suite with each finding as a failed test."""
    suite = ET.Element(
        "testsuite", name="holdfast lint", tests=str(max(1, len(claims))), failures=str(len(claims))
    )
    for reported in claims:
        claim = reported.finding
        case = ET.SubElement(
            suite,
            "testcase",
            classname=_printable(claim.subject.file or ""),
            name=f"{claim.code} {reported.rule}",
        )
        failure = ET.SubElement(
            case, "failure", message=_printable(claim.message), type=claim.level.value
        )
        failure.text = _printable(_position(reported))
    if not claims:
        ET.SubElement(suite, "testcase", classname="holdfast", name="lint")
    return ET.tostring(suite, encoding="unicode", xml_declaration=True)
