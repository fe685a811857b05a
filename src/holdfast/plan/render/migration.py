"""The terminal report of a configuration converted from one framework to another."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.report.document import ReportDocument, ReportRow, ReportSection


class MigrationView(msgspec.Struct, frozen=True, kw_only=True):
    """A converted configuration.

    ``mapped``: key, value, target and silent difference; ``unmapped``: setting and reason.
    ``files``: paths and purposes, or names and texts if nothing was written.
    """

    origin: str
    to: str
    mapped: tuple[tuple[str, str, str, str], ...]
    unmapped: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    files: tuple[tuple[str, str], ...]
    written: bool


def migration_document(migration: MigrationView) -> ReportDocument:
    """Return the report; :func:`join_files` renders the texts of files that were not written."""
    count = len(migration.unmapped)
    summary = f", {count} not converted" if count else ", all converted"
    sections = (
        ReportSection(
            "converted",
            tuple(
                ReportRow(f"{key} {value} → {target}", mark="•", aside=difference)
                for key, value, target, difference in migration.mapped
            ),
        ),
        ReportSection(
            "not converted",
            tuple(
                ReportRow(f"{setting}: {reason}", mark="•")
                for setting, reason in migration.unmapped
            ),
        ),
        ReportSection("warnings", tuple(ReportRow(text, mark="•") for text in migration.warnings)),
        ReportSection(
            "written",
            tuple(ReportRow(path, style="path") for path, _ in migration.files)
            if migration.written
            else (),
        ),
    )
    total = len(migration.mapped) + count
    tone, symbol = ("warning", "⚠") if migration.unmapped or migration.warnings else ("fine", "✓")
    return ReportDocument(
        symbol,
        f"{migration.origin} to {migration.to}: {total} settings{summary}",
        tone,
        tuple(section for section in sections if section.rows),
    )


def join_files(files: Sequence[tuple[str, str]]) -> str:
    """Join files, each under its name."""
    return "\n".join(f"# ---- {name}\n{text.rstrip()}\n" for name, text in files)
