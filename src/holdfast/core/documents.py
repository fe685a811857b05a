"""Read bounded, versioned JSON documents.

The one implementation for all files that holdfast writes.

A document is never trusted: one that is too large, malformed or of another schema is rejected as a
whole. Each function takes ``error``, which builds the exception from a predicate such as
"is larger than 1 MiB"; the caller prepends the subject.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

_SHOWN_CHARACTERS = 40


class VersionedDocument(Protocol):
    """A document that names its format and version, such as ``holdfast/links/1``."""

    @property
    def schema(self) -> str:
        """Return the format and version."""


_Document = TypeVar("_Document", bound=VersionedDocument)
ErrorFactory = Callable[[str], Exception]


class _Header(msgspec.Struct, frozen=True):
    schema: str | None = None


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Return at most ``max_bytes + 1`` bytes of a file, enough to detect one that is too large.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as stream:
        return stream.read(max_bytes + 1)


def decode_document(
    data: bytes,
    kind: type[_Document],
    *,
    schema: str,
    max_bytes: int,
    error: ErrorFactory,
    version_error: ErrorFactory | None = None,
) -> _Document:
    """Decode ``data`` as ``kind`` of the given ``schema``.

    Raises:
        Exception: what ``error`` builds if it is too large or malformed; what ``version_error``
            (default: ``error``) builds if it has another schema.
    """
    if len(data) > max_bytes:
        raise error(f"is larger than {max_bytes >> 20} MiB")
    wrong_version = version_error or error
    try:
        document = msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as cause:
        found = _peek_schema(data)
        if found not in (None, schema):
            raise wrong_version(_describe_mismatch(found or "", schema)) from cause
        raise error(f"is not valid: {cause}") from cause
    if document.schema != schema:
        raise wrong_version(_describe_mismatch(document.schema, schema))
    return document


def _peek_schema(data: bytes) -> str | None:
    try:
        return msgspec.json.decode(data, type=_Header).schema
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _describe_mismatch(found: str, schema: str) -> str:
    return f"has the schema {found[:_SHOWN_CHARACTERS]!r}, not {schema!r}"
