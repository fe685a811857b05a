"""What `holdfast check --json` and `holdfast env --json` found, beside a run.

The files are named ``check*.json``, ``env*.json`` or ``checklist*.json``, in the run folder (there
`holdfast run` writes its own ``env.json``), in the folder of all runs, or in a folder of the user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from holdfast.core.documents import read_bounded
from holdfast.core.findings import Finding
from holdfast.core.text import os_error_reason

PATTERNS = ("check*.json", "env*.json")
MAX_REPORTS, MAX_FINDINGS, MAX_BYTES = 50, 100, 8 << 20
_SCHEMA = "holdfast/1"


class CommandReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one command: when its file was written, by state how many checks, findings.

    ``unseen`` is what could not be checked.
    """

    command: str
    file: str
    at: float
    hosts: tuple[str, ...] = ()
    states: dict[str, int] = {}
    findings: tuple[Finding, ...] = ()
    unseen: tuple[str, ...] = ()


class _CheckOutput(msgspec.Struct, frozen=True):
    state: str = ""
    host: str | None = None
    unseen: tuple[str, ...] = ()


class _CommandOutput(msgspec.Struct, frozen=True):
    schema: str
    command: str
    findings: tuple[Finding, ...] = ()
    checks: tuple[_CheckOutput, ...] = ()
    unseen: tuple[str, ...] = ()


def read_reports(folders: Iterable[Path]) -> tuple[tuple[CommandReport, ...], tuple[str, ...]]:
    """Return the reports in the folders, the newest first, and why others could not be read."""
    reports: list[CommandReport] = []
    problems: list[str] = []
    for path in dict.fromkeys(path for folder in folders for path in _files(folder)):
        try:
            document = msgspec.json.decode(read_bounded(path, MAX_BYTES), type=_CommandOutput)
            if document.schema != _SCHEMA:
                problems.append(f"{path.name} has the schema {document.schema!r}, not {_SCHEMA!r}")
                continue
            reports.append(_report(path, document))
        except FileNotFoundError:
            continue  # deleted since the listing
        except OSError as error:
            problems.append(f"{path.name} cannot be read: {os_error_reason(error)}")
        except (msgspec.DecodeError, RecursionError) as error:
            problems.append(f"{path.name} is not the output of a command with --json: {error}")
    reports.sort(key=lambda report: report.at, reverse=True)
    return tuple(reports[:MAX_REPORTS]), tuple(problems)


def _report(path: Path, document: _CommandOutput) -> CommandReport:
    unseen = (*document.unseen, *(text for check in document.checks for text in check.unseen))
    return CommandReport(
        command=document.command,
        file=path.name,
        at=path.stat().st_mtime,
        hosts=tuple(dict.fromkeys(check.host for check in document.checks if check.host)),
        states=dict(Counter(check.state for check in document.checks)),
        findings=document.findings[:MAX_FINDINGS],
        unseen=unseen[:MAX_FINDINGS],
    )


def _files(folder: Path) -> list[Path]:
    try:
        return [path for pattern in PATTERNS for path in sorted(folder.glob(pattern))]
    except OSError:
        return []
