"""What logs show of the values that remedies leave open: the script, and the store's endpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from holdfast.diagnose.log_rules.log_index import LogIndex
from holdfast.host.processes.user_code import is_user_file

#: Endpoints as torch prints them: ``[node0]:29500``, ``[::ffff:10.0.0.1]:29500``,
#: ``(node0, 29500)``, ``tcp://node0:29500``, ``10.0.0.1:29500``.
_ENDPOINT = re.compile(
    r"(?:\[(?:::ffff:)?|\(|tcp://|(?<![\w.:/-])(?=\d+\.\d+\.\d+\.\d))"
    r"(?P<host>[\w.:-]{1,253}?)(?:\]:|, |:)(?P<port>\d{2,5})\b"
)


def remedy_values(index: LogIndex, evidence: Iterable[str]) -> Mapping[str, str]:
    """Return values of the placeholders SCRIPT, MASTER_HOST and MASTER_PORT; empty if unknown.

    The endpoint must be in the finding's ``evidence``: other lines may show other ports.
    """
    endpoint = next(filter(None, map(_ENDPOINT.search, evidence)), None)
    return {
        "SCRIPT": _script(index),
        "MASTER_HOST": endpoint["host"] if endpoint else "",
        "MASTER_PORT": endpoint["port"] if endpoint else "",
    }


def _script(index: LogIndex) -> str:
    """Return the user's file at whose module level all tracebacks begin."""
    scripts = set()
    for traceback in index.facts.tracebacks:
        modules = (frame.file for frame in traceback.frames if frame.function == "<module>")
        scripts.update(
            [file for file in modules if file.endswith(".py") and is_user_file(file)][-1:]
        )
    return scripts.pop() if len(scripts) == 1 else ""
