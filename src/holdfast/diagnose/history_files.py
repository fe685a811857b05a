"""Read histories of collectives from evidence files."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.collective_history import (
    MAX_BYTES,
    CollectiveHistory,
    merge_histories,
    parse_history,
)
from holdfast.core.errors import InvalidValue
from holdfast.core.findings import Fact
from holdfast.diagnose.evidence import EvidenceFile, SkippedEvidence
from holdfast.watcher.history_facts import history_facts


def read_histories(
    files: Iterable[EvidenceFile],
) -> tuple[tuple[Fact, ...], tuple[SkippedEvidence, ...]]:
    """Return the facts in the files, and the invalid files; copies of one history count once."""
    histories: list[CollectiveHistory] = []
    names: list[str] = []
    skipped: list[SkippedEvidence] = []
    for file in files:
        try:
            with file.open() as stream:
                histories.append(parse_history(stream.read(MAX_BYTES + 1), file.name))
            names.append(file.name)
        except InvalidValue as error:
            skipped.append(SkippedEvidence(file.name, error.why, lost=True))
    if not names:
        return (), tuple(skipped)
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return history_facts(merge_histories(histories), f"{names[0]}{more}"), tuple(skipped)
