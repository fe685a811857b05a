"""Versioned documents: bounds, malformed input, and documents of another schema."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core.documents import decode_document, read_bounded

SCHEMA = "holdfast/example/1"


class Example(msgspec.Struct):
    number: int
    schema: str = SCHEMA


class Malformed(Exception):
    pass


class WrongVersion(Exception):
    pass


def decode(data, **options):
    return decode_document(
        data, Example, schema=SCHEMA, max_bytes=1 << 20, error=Malformed, **options
    )


def test_a_document_is_decoded():
    assert decode(b'{"number": 3, "more": 1}').number == 3


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is not valid: "),
        (b'{"number": "x"}', "is not valid: "),
        (b"[" * 100_000, "is not valid: "),
        (b"\xff", "is not valid: "),
        (b" " * ((1 << 20) + 1), "is larger than 1 MiB"),
        (b'{"number": 1, "schema": "other"}', "has the schema 'other', not 'holdfast/example/1'"),
    ],
)
def test_invalid_documents_raise_the_callers_error(data, problem):
    with pytest.raises(Malformed) as raised:
        decode(data)
    assert str(raised.value).startswith(problem)


@pytest.mark.parametrize("rest", [b'"number": 1', b'"number": {}'])
def test_another_schema_raises_the_version_error_even_if_fields_differ(rest):
    with pytest.raises(WrongVersion, match="has the schema 'holdfast/example/2'"):
        decode(b'{"schema": "holdfast/example/2", ' + rest + b"}", version_error=WrongVersion)


def test_read_bounded_reads_one_byte_more(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bounded(path, 3) == b"1234"
    assert read_bounded(path, 9) == b"12345"
