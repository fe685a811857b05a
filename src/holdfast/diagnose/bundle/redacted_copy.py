"""Write a redacted copy of a file, and scan what was written until it contains no secrets.

The copy is read by the reader of its kind: a trace file, a dump, a JSON document, or text.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from holdfast.core.redaction.redact import Redactor
from holdfast.diagnose.bundle.evidence_files import (
    MAX_DOCUMENT_BYTES,
    BundleSource,
    Excerpt,
    open_source,
)
from holdfast.diagnose.bundle.redact_records import (
    redact_data,
    redact_document,
    redact_dump,
    redact_trace,
)
from holdfast.diagnose.evidence import EvidenceKind
from holdfast.watcher.trace_reader import TraceReading

#: A file that still contains secrets after this many rounds is omitted.
MAX_ROUNDS = 3
#: A tag of an HTML page, or content that a browser does not show.
_TAG = re.compile(r"(<(?:style|script)\b.*?</(?:style|script)>|<[^>]*>)", re.DOTALL | re.IGNORECASE)


def redact_source(source: BundleSource, excerpt: Excerpt, redactor: Redactor) -> Iterator[bytes]:
    """Return the included part of the file without secrets.

    Raises:
        TraceUnreadable, DumpUnreadable: the file cannot be scanned for secrets.
    """
    if source.kind is EvidenceKind.TRACE:
        return iter([redact_trace(excerpt.read_record(), source.name, redactor)])
    if source.kind is EvidenceKind.DUMP:
        return iter([redact_dump(excerpt.read_record(), source.name, redactor)])
    if excerpt.size <= MAX_DOCUMENT_BYTES:
        if source.is_document:
            return iter([redact_document(excerpt.read_text(), redactor)])
        if source.is_page:
            return iter([_redact_page(excerpt.read_text(), redactor)])
    return _redact_text(excerpt, redactor)


def write_verified(
    blocks: Iterable[bytes],
    target: Path,
    source: BundleSource,
    new_redactor: Callable[[], Redactor],
) -> Counter[str]:
    """Write ``blocks``, the redacted content of ``source``, and redact again until it is clean.

    Returns how many secrets of each kind were found in what had been written. If secrets remain
    after MAX_ROUNDS, ``target`` does not exist.

    Raises:
        TraceUnreadable, DumpUnreadable: the written file is not readable.
    """
    _write_blocks(blocks, target)
    if source.kind is EvidenceKind.TRACE:
        TraceReading(target).read_notes()  # the reader of ``diagnose`` must accept it too
    written = replace(source, path=target, encoding="utf-8", unpack=None)
    found: Counter[str] = Counter()
    for _ in range(MAX_ROUNDS):
        redactor, next_copy = new_redactor(), target.with_name(target.name + ".again")
        with open_source(written) as excerpt:
            _write_blocks(redact_source(written, excerpt, redactor), next_copy)
        if not redactor.counts:
            next_copy.unlink()
            return found
        found += redactor.counts
        next_copy.replace(target)
    target.unlink()
    return found


def _write_blocks(blocks: Iterable[bytes], target: Path) -> None:
    with target.open("xb") as file:
        file.writelines(blocks)


def _redact_text(excerpt: Excerpt, redactor: Redactor) -> Iterator[bytes]:
    for number, part in enumerate(excerpt.parts()):
        if number:
            yield b"\n<left out: %d bytes>\n" % excerpt.omitted
        yield from redactor.redact_stream(part, begins_inside=number > 0)


def _redact_page(data: bytes, redactor: Redactor) -> bytes:
    """Redact the visible text of an HTML page like lines of text, and the tags one by one."""
    parts = _TAG.split(data.decode("utf-8", "surrogateescape"))
    visible = [index for index in range(0, len(parts), 2) if parts[index].strip()]
    texts = [html.unescape(parts[index]) for index in visible]
    redacted = redact_data(texts, redactor)
    for index, before, after in zip(visible, texts, redacted, strict=True):
        if before != after:
            parts[index] = html.escape(after)
    parts[1::2] = [redactor.redact_text(part) for part in parts[1::2]]
    return "".join(parts).encode("utf-8", "surrogateescape")
