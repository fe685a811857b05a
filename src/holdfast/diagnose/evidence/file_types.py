"""Detect the kind of a file from its first bytes; its name is ignored.

Unrecognized text in any encoding is a log; unrecognized binary content is ``UNKNOWN``.
"""

from __future__ import annotations

import codecs
import re
from enum import StrEnum
from functools import lru_cache

import msgspec

from holdfast.core import trace_file
from holdfast.diagnose.evidence import EvidenceKind
from holdfast.diagnose.transports.recognition import recognize

#: Number of first bytes that are examined.
HEAD_BYTES = 1 << 14

_HEX_ESCAPED = frozenset(range(0x20)) - frozenset(b"\t\n\x0b\x0c\r\b\x1b\x07")
_CONTROLS = bytes(sorted(_HEX_ESCAPED | {0x7F}))
#: Largest share of control characters in text: in UTF-8, and in an unknown encoding.
_MAX_CONTROLS_UTF8 = 0.3
_MAX_CONTROLS_OTHER = 0.02
#: Share of zero bytes at even or odd offsets above which text without a mark is UTF-16.
_UTF16_ZEROS = 0.4
#: The same for text with words in another script than Latin.
_UTF16_ZEROS_OF_MIXED = 0.8
#: The first key of a pickled dictionary lies within these bytes.
_FIRST_KEY_BYTES = 48
_TAR_MAGIC_OFFSET = 257
_TAR_BLOCK_BYTES = 512

#: What all JSON documents and run records begin with.
_JSON = re.compile(rb"\s*[{\[]")
_DUMP_JSON = re.compile(
    rb'\s*\{.*?"(?:entries|pg_config|pg_status|nccl_version|version)"\s*:', re.DOTALL
)
_DUMP_KEYS = (b'"pg_config"', b'"pg_status"', b'"collective_seq_id"', b'"record_id"', b'"entries"')
_STACKS_JSON = re.compile(
    rb'\s*\[\s*\{\s*"(?:pid|thread_id|thread_name|active|owns_gil|frames|os_thread_id)"\s*:'
)
_STACKS_TEXT = re.compile(
    rb"\s*(?:Process \d+: [^\n]*\n(?:Python v\d[^\n]*\n)?\s*Thread \S+ \("
    rb"|(?:[^\n]{0,200}\n){0,3}?(?: *\d{1,6}: ?)?Process \d+: [^\n]*\n(?: *\d{1,6}: ?)?Python v\d"
    rb"|(?:Current thread|Thread) 0x[0-9a-f]+ [^\n]*\()"
)
_REDUCED_JSON = re.compile(rb'\s*\{\s*"schema"\s*:\s*"holdfast/dumps/')
_HISTORY_JSON = re.compile(rb'\s*\{\s*"schema"\s*:\s*"holdfast/history/')
#: ``facts.json``, ``ledger.jsonl`` and ``live-0.jsonl`` of a run folder.
_RUN_RECORDS = re.compile(
    rb'\s*(?:\[\s*\{\s*"text"\s*:\s*"(?:[^"\\]|\\.)*"\s*,\s*"origin"|\{"(?:schema":"[^"]*","|)(?:event":"\w+","at":\d|schema":"holdfast/live-series/))'
)
_REPORT_JSON = re.compile(rb'\s*\{\s*"(?:schema"\s*:\s*"holdfast/|question"\s*:|ranks"\s*:\s*\[)')

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

_MARK_BYTES = tuple(mark for mark, _ in _MARKS)

#: Endings of text that is not evidence if found in a folder or an archive.
_SOURCE_ENDINGS = frozenset(
    {".py", ".pyi", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h",
     ".hpp", ".rs", ".go", ".js", ".ts", ".css", ".html", ".md",
     ".rst", ".toml", ".ipynb", ".svg", ".tex", ".yaml", ".yml"}
)  # fmt: skip
#: What wandb logs about itself, next to ``files/output.log`` with the output of the training.
_TOOL_LOG = re.compile(r"(?:^|/)wandb/(?:.*/)?debug(?:-internal|-core|-cli(?:\.\w+)?)?\.log$")
_SOURCE_REASON = "source code or document, by its name; pass the file itself to read it"


class Container(StrEnum):
    """Archive or compression format of a file."""

    GZIP = "gzip"
    BZIP2 = "bzip2"
    XZ = "xz"
    TAR = "tar"
    ZIP = "zip"


_CONTAINERS = (
    (b"\x1f\x8b", Container.GZIP),
    (b"\xfd7zXZ\x00", Container.XZ),
    (b"PK\x03\x04", Container.ZIP),
    (b"PK\x05\x06", Container.ZIP),
)
_CONTAINER_MAGICS = tuple(magic for magic, _ in _CONTAINERS)
#: Formats that are recognized but not read.
_UNSUPPORTED = (
    (b"\x28\xb5\x2f\xfd", "zstd compression is not supported; decompress it first"),
    (b"\x04\x22\x4d\x18", "lz4 compression is not supported; decompress it first"),
    (b"7z\xbc\xaf\x27\x1c", "7z archives are not supported; unpack it first"),
    (b"Rar!\x1a\x07", "rar archives are not supported; unpack it first"),
    (b"\x7fELF", "a program or library (ELF)"),
    (b"\x89PNG", "an image (PNG)"),
    (b"%PDF-", "a PDF document"),
)
_UNSUPPORTED_MAGICS = tuple(magic for magic, _ in _UNSUPPORTED)


def detect_container(head: bytes) -> Container | None:
    """Return the archive or compression format; None for a plain file."""
    if head.startswith(_CONTAINER_MAGICS):
        return next(kind for magic, kind in _CONTAINERS if head.startswith(magic))
    if head[:3] == b"BZh" and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return Container.BZIP2
    return Container.TAR if _is_tar(head) else None


def _is_tar(head: bytes) -> bool:
    """Return whether this is a tar header: by its magic, or (before POSIX) by its checksum."""
    if len(head) < _TAR_BLOCK_BYTES or b"\0" not in head[:_TAR_BLOCK_BYTES]:
        return False  # zeros fill the header
    if head[_TAR_MAGIC_OFFSET : _TAR_MAGIC_OFFSET + 5] == b"ustar":
        return True
    checksum = re.fullmatch(rb" *([0-7]{1,6})[ \0]{1,2}", head[148:156])
    if checksum is None:
        return False
    actual = sum(head[:148]) + 8 * 0x20 + sum(head[156:_TAR_BLOCK_BYTES])
    return int(checksum[1], 8) == actual


def unsupported_format(head: bytes) -> str:
    """Return why a file in a recognized format is not evidence; empty for all others."""
    if _JSON.match(head) and _RUN_RECORDS.match(head):
        return "facts about the run, written by holdfast; the evidence next to it is analyzed"
    if not head.startswith(_UNSUPPORTED_MAGICS):
        return ""
    return next(why for magic, why in _UNSUPPORTED if head.startswith(magic))


def reason_to_skip(name: str) -> str:
    """Return why a file found under this name is not read; empty for all others."""
    if _TOOL_LOG.search(name):
        return "log of wandb itself; pass the file itself to read it"
    stem, dot, ending = name.rpartition("/")[2].rpartition(".")
    return _SOURCE_REASON if stem and f"{dot}{ending}".lower() in _SOURCE_ENDINGS else ""


def detect_kind(head: bytes) -> EvidenceKind:
    """Return the kind of a file that is not a container."""
    if head.startswith(trace_file.MAGIC):
        return EvidenceKind.TRACE
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):  # a pickle
        is_snapshot = b"segments" in head[:_FIRST_KEY_BYTES]
        return EvidenceKind.SNAPSHOT if is_snapshot else EvidenceKind.DUMP
    encoding = detect_encoding(head)
    if unsupported_format(head) or encoding is None:
        return EvidenceKind.UNKNOWN
    text = head if encoding == "utf-8" else head.decode(encoding, errors="replace").encode()
    if _JSON.match(text):
        return _detect_json_kind(text)
    return EvidenceKind.STACKS if _STACKS_TEXT.match(text) else EvidenceKind.LOG


def _detect_json_kind(head: bytes) -> EvidenceKind:
    if _REDUCED_JSON.match(head):
        return EvidenceKind.REDUCED
    if _HISTORY_JSON.match(head):
        return EvidenceKind.HISTORY
    if _REPORT_JSON.match(head):
        return EvidenceKind.REPORT
    if _STACKS_JSON.match(head) or _STACKS_TEXT.match(head):
        return EvidenceKind.STACKS
    if _DUMP_JSON.match(head) and sum(key in head for key in _DUMP_KEYS) > 1:
        return EvidenceKind.DUMP
    return EvidenceKind.UNKNOWN if _is_json_document(head) else EvidenceKind.LOG


def _is_json_document(head: bytes) -> bool:
    """Return whether a short file is one JSON value without a log's messages."""
    if len(head) >= HEAD_BYTES or head.lstrip()[:1] not in (b"{", b"["):
        return False
    try:
        msgspec.json.decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return not recognize(head)


@lru_cache(maxsize=2)  # detect_kind and its caller need it for the same bytes
def detect_encoding(head: bytes) -> str | None:
    """Return the encoding of text; ``utf-8`` also for unknown 8-bit encodings; None for binary."""
    if head.startswith(_MARK_BYTES):
        return next(name for mark, name in _MARKS if head.startswith(mark))
    unmarked = _detect_utf16(head)
    if unmarked is not None:
        return unmarked
    text = head.lstrip(b"\0")  # a log that was truncated while open for writing begins with zeros
    if not text:
        return None
    share = (len(text) - len(text.translate(None, _CONTROLS))) / len(text)
    limit = _MAX_CONTROLS_UTF8 if _is_utf8(text) else _MAX_CONTROLS_OTHER
    return "utf-8" if share <= limit else None


def _detect_utf16(head: bytes) -> str | None:
    pairs = len(head) // 2
    if pairs < 8 or b"\0" not in head:
        return None
    for first, name in ((0, "utf-16-be"), (1, "utf-16-le")):
        zeros = head[first : 2 * pairs : 2].count(0)
        others = head[1 - first : 2 * pairs : 2]
        if zeros > _UTF16_ZEROS * pairs and others.count(0) < 0.02 * pairs:
            plain = others.translate(None, _CONTROLS)
            is_plain = max(others) < 0x80 or zeros > _UTF16_ZEROS_OF_MIXED * pairs
            return name if len(plain) > 0.95 * len(others) and is_plain else None
    return None


def _is_utf8(text: bytes) -> bool:
    """Return whether the bytes are UTF-8, possibly cut within a character at the end."""
    if text.isascii():
        return True
    try:
        codecs.getincrementaldecoder("utf-8")().decode(text)
    except UnicodeDecodeError:
        return False
    return True
