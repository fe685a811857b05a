"""The one envelope in which every command hands its findings to scripts: ``{"schema": "holdfast/1", ...}``."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, TextIO, cast

import msgspec

from holdfast.errors import InternalError
from holdfast.findings import SCHEMA, Finding, Verdict, finding_to_json, verdict_to_json
from holdfast.report.files import write_whole

#: Keys of the envelope itself, in the order in which they are written.
KEYS = ("schema", "command", "findings", "verdict")


def envelope(command: str, findings: Sequence[Finding], verdict: Verdict | None, **more: Any) -> dict[str, Any]:
    """The document of ``command`` as plain data; ``more`` are the command's own keys, written after the common ones.

    ``more`` may hold findings, verdicts and any other msgspec structure.

    Raises:
        InternalError: a key of ``more`` is one of the envelope's own.
    """
    if taken := sorted(set(KEYS) & set(more)):
        raise InternalError(f"the envelope's own key {taken[0]!r} was given twice")
    return {
        "schema": SCHEMA,
        "command": command,
        "findings": [finding_to_json(claim) for claim in findings],
        "verdict": verdict_to_json(verdict),
        **{key: msgspec.to_builtins(value, str_keys=True) for key, value in more.items()},
    }


def encode(document: Mapping[str, Any]) -> bytes:
    r"""``document`` as one line of UTF-8 JSON.

    A number that is not finite becomes null; bytes in a file's name that are no UTF-8 stay as ``\udc..`` escapes.
    """
    try:
        return msgspec.json.encode(document) + b"\n"
    except UnicodeEncodeError:
        finite = _without_nan(msgspec.to_builtins(document, str_keys=True))
        return json.dumps(finite, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def write(path_or_stream: str | os.PathLike[str] | TextIO | BinaryIO, document: Mapping[str, Any]) -> None:
    """Write ``document`` to a file, whole or not at all, or to an open stream of text or bytes.

    Raises:
        MissingFile: the file cannot be written.
    """
    content = encode(document)
    if isinstance(path_or_stream, str | os.PathLike):
        write_whole(path_or_stream, content)
        return
    _write_stream(path_or_stream, content)


def _write_stream(stream: TextIO | BinaryIO, content: bytes) -> None:
    stream.flush()  # what was written as text comes first
    if isinstance(stream, io.TextIOWrapper):
        stream.buffer.write(content)  # whatever the encoding of the text, JSON is UTF-8
    elif isinstance(stream, io.TextIOBase):
        stream.write(content.decode())
    else:
        cast(BinaryIO, stream).write(content)
    stream.flush()


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_nan(entry) for entry in value]
    if isinstance(value, float) and not float("-inf") < value < float("inf"):
        return None
    return value
