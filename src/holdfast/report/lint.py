"""Findings in source code as linters write them: lines for a terminal, GitHub's annotations, SARIF, JUnit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any
from xml.etree import ElementTree as ET

from holdfast.findings import Finding, Level

_GITHUB = {Level.ERROR: "error", Level.WARNING: "warning"}
_SARIF = {Level.ERROR: "error", Level.WARNING: "warning"}
_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
#: A rule's name and its finding.
Named = tuple[str, Finding]


def lines(claims: Iterable[Named], *, explain: bool = False) -> Iterable[str]:
    """``file:line: CODE name: message``; with ``explain`` what it rests on, and what to do."""
    for name, claim in claims:
        yield f"{claim.subject.file}:{claim.subject.line}: {claim.code} {name}: {claim.message}"
        if explain:
            yield from (f"    {fact.origin}: {fact.text}" for fact in claim.evidence)
            yield from (f"    → {remedy.text}" for remedy in claim.remedies[:2])


def github(claims: Iterable[Named]) -> Iterable[str]:
    """Workflow commands that GitHub shows beside the lines of a pull request."""
    for name, claim in claims:
        title = f"{claim.code} {name}"
        where = f"file={_escaped(claim.subject.file or '')},line={claim.subject.line},title={_escaped(title)}"
        yield f"::{_GITHUB.get(claim.level, 'notice')} {where}::{_escaped(claim.message)}"


def _escaped(text: str) -> str:
    for sign, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"), (",", "%2C"), ("::", "%3A%3A")):
        text = text.replace(sign, code)
    return text


def sarif(claims: Sequence[Named], version: str) -> str:
    """A log of SARIF 2.1.0 (OASIS), as code scanning of GitHub and editors read it."""
    rules = {name: {"id": f"{claim.code}", "name": name} for name, claim in claims}
    results = [_result(name, claim) for name, claim in claims]
    driver = {"name": "holdfast", "version": version, "rules": list(rules.values())}
    run = {"tool": {"driver": driver}, "results": results}
    return json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _result(name: str, claim: Finding) -> dict[str, Any]:
    place = {
        "artifactLocation": {"uri": claim.subject.file},
        "region": {"startLine": claim.subject.line},
    }
    return {
        "ruleId": claim.code,
        "level": _SARIF.get(claim.level, "note"),
        "message": {"text": f"{name}: {claim.message}"},
        "locations": [{"physicalLocation": place}],
    }


def junit(claims: Sequence[Named]) -> str:
    """A test suite in which each finding is a test that failed, for servers that show nothing else."""
    suite = ET.Element("testsuite", name="holdfast lint", tests=str(max(1, len(claims))), failures=str(len(claims)))
    for name, claim in claims:
        case = ET.SubElement(suite, "testcase", classname=claim.subject.file or "", name=f"{claim.code} {name}")
        failure = ET.SubElement(case, "failure", message=claim.message, type=claim.level.value)
        failure.text = f"{claim.subject.file}:{claim.subject.line}"
    if not claims:
        ET.SubElement(suite, "testcase", classname="holdfast", name="lint")
    return ET.tostring(suite, encoding="unicode", xml_declaration=True)
