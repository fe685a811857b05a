"""The JSON document in which all commands return findings: ``{"schema": "holdfast/1", …}``."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, TextIO, cast

import msgspec

from holdfast.core.atomic_files import write_atomic
from holdfast.core.errors import InternalError
from holdfast.core.findings import SCHEMA, Finding, Verdict, finding_to_json, verdict_to_json

#: Keys of the envelope, in their order.
KEYS = ("schema", "command", "findings", "verdict")


def envelope(
    command: str, findings: Sequence[Finding], verdict: Verdict | None, **more: Any
) -> dict[str, Any]:
    """Return the document of ``command`` as plain data; ``more`` are its additional keys.

    ``more`` may contain findings, verdicts and other msgspec structures.

    Raises:
        InternalError: a key of ``more`` is reserved for the envelope.
    """
    if reserved := sorted(set(KEYS) & set(more)):
        raise InternalError(f"key {reserved[0]!r} is reserved for the envelope")
    return {
        "schema": SCHEMA,
        "command": command,
        "findings": [finding_to_json(claim) for claim in findings],
        "verdict": verdict_to_json(verdict),
        **{key: msgspec.to_builtins(value, str_keys=True) for key, value in more.items()},
    }


def encode_json(document: Mapping[str, Any]) -> bytes:
    r"""Return ``document`` as one line of UTF-8 JSON.

    Numbers that are not finite become null; invalid UTF-8 in file names stays as ``\udc..``
    escapes.
    """
    try:
        return msgspec.json.encode(document) + b"\n"
    except UnicodeEncodeError:
        finite = _without_nan(msgspec.to_builtins(document, str_keys=True))
        return json.dumps(finite, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def write_json(
    path_or_stream: str | os.PathLike[str] | TextIO | BinaryIO, document: Mapping[str, Any]
) -> None:
    """Write ``document`` to a file (atomically), or to an open stream of text or bytes.

    Raises:
        MissingFile: the file cannot be written.
    """
    content = encode_json(document)
    if isinstance(path_or_stream, str | os.PathLike):
        write_atomic(path_or_stream, content)
        return
    _write_stream(path_or_stream, content)


def _write_stream(stream: TextIO | BinaryIO, content: bytes) -> None:
    stream.flush()  # previous text precedes the document
    if isinstance(stream, io.TextIOWrapper):
        stream.buffer.write(content)  # JSON is UTF-8, whatever the encoding of the text stream
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
