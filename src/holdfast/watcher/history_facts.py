"""Facts from the history of collectives: which timed out or were slow, and what was learned."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.core import settings
from holdfast.core.collective_history import (
    MAX_BYTES,
    CollectiveHistory,
    advise,
    describe_problem,
    merge_histories,
    parse_history,
)
from holdfast.core.errors import InvalidValue
from holdfast.core.findings import Fact

#: Folder beside the runs, and the file that an incident or a run keeps of it.
FOLDER, FILE = "history", "history.json"
#: Maximum number of hosts whose files are read.
_MAX_FILES = 256


def history_folder(runs: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder with the history of the runs in the folder ``runs``."""
    return settings.read_path("HOLDFAST_HISTORY", environ) or runs.absolute() / FOLDER


def read_histories(folder: Path) -> CollectiveHistory:
    """Merge the files of all hosts in the folder; unreadable files are skipped."""
    histories = []
    with suppress(OSError):
        for file in sorted(folder.glob("*.json"))[:_MAX_FILES]:
            with suppress(OSError, InvalidValue):
                if file.is_file() and file.stat().st_size <= MAX_BYTES:
                    histories.append(parse_history(file.read_bytes(), str(file)))
    return merge_histories(histories)


def encode_history(history: CollectiveHistory) -> bytes:
    """Return the content of a history file."""
    return msgspec.json.format(msgspec.json.encode(history))


def history_facts(history: CollectiveHistory, origin: str) -> tuple[Fact, ...]:
    """Return a fact per problem, newest first, each followed by the changes that it caused."""
    facts: list[Fact] = []
    for problem in sorted(history.troubles, key=lambda problem: problem.at, reverse=True):
        text = describe_problem(problem, history.runs)
        facts.append(Fact(text=text, origin=origin, time=problem.at or None))
        facts += (
            Fact(text=reason, origin=origin) for reason in advise(problem, history.runs).reasons
        )
    return tuple(facts)
