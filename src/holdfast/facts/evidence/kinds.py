"""Tells what a file is from its first bytes; its name is never believed.

What is not known for certain is a log where it is text, in whatever encoding, and ``UNKNOWN`` where it is not.
"""

from __future__ import annotations

import codecs
import re
from enum import StrEnum
from functools import lru_cache

import msgspec

from holdfast import blackbox
from holdfast.facts.evidence import Kind

#: So many of the first bytes are looked at.
HEAD_BYTES = 1 << 14

_HEX_ESCAPED = frozenset(range(0x20)) - frozenset(b"\t\n\x0b\x0c\r\b\x1b\x07")
_CONTROLS = bytes(sorted(_HEX_ESCAPED | {0x7F}))
#: Share of control characters up to which bytes are text: in UTF-8, and in an encoding that is not known.
_MOST_CONTROLS = 0.3
_MOST_CONTROLS_ELSEWHERE = 0.02
#: Share of zero bytes at even or odd places that tells UTF-16 without a mark at its beginning.
_UTF16_ZEROS = 0.4
#: Of a pickled dictionary, in which its first key stands: that of a snapshot of GPU memory.
_FIRST_KEY = 48
_TAR_MAGIC_AT = 257
_TAR_BLOCK = 512

_DUMP_JSON = re.compile(rb'\s*\{.*?"(?:entries|pg_config|pg_status|nccl_version|version)"\s*:', re.DOTALL)
_DUMP_WORDS = (b'"pg_config"', b'"pg_status"', b'"collective_seq_id"', b'"record_id"', b'"entries"')
_STACKS_JSON = re.compile(rb'\s*\[\s*\{\s*"(?:pid|thread_id|thread_name|active|owns_gil|frames|os_thread_id)"\s*:')
_STACKS_TEXT = re.compile(
    rb"\s*(?:Process \d+: [^\n]*\n(?:Python v\d[^\n]*\n)?\s*Thread \S+ \("
    rb"|(?:[^\n]{0,200}\n){0,3}?(?: *\d{1,6}: ?)?Process \d+: [^\n]*\n(?: *\d{1,6}: ?)?Python v\d"
    rb"|(?:Current thread|Thread) 0x[0-9a-f]+ [^\n]*\()"
)
_REDUCED_JSON = re.compile(rb'\s*\{\s*"schema"\s*:\s*"holdfast/dumps/')
_HISTORY_JSON = re.compile(rb'\s*\{\s*"schema"\s*:\s*"holdfast/history/')
_REPORT_JSON = re.compile(rb'\s*\{\s*"(?:schema"\s*:\s*"holdfast/|question"\s*:|ranks"\s*:\s*\[)')
_MESSAGES = frozenset({"log", "message", "msg", "text", "MESSAGE"})

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

#: Text that is no log, where it is found in a folder or an archive; whoever names it has it read.
_SOURCES = frozenset(
    {".py", ".pyi", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h",
     ".hpp", ".rs", ".go", ".js", ".ts", ".css", ".html", ".md",
     ".rst", ".toml", ".ipynb", ".svg", ".tex"}
)  # fmt: skip
_SOURCE_WHY = "its name is that of source code or a document; name the file itself to have it read"


class Container(StrEnum):
    """A file that holds others, or one file compressed."""

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
#: What is recognised and cannot be read.
_FOREIGN = (
    (b"\x28\xb5\x2f\xfd", "it is compressed with zstd, which this Python cannot read; decompress it first"),
    (b"\x04\x22\x4d\x18", "it is compressed with lz4, which this Python cannot read; decompress it first"),
    (b"7z\xbc\xaf\x27\x1c", "it is a 7z archive, which holdfast cannot read; unpack it first"),
    (b"Rar!\x1a\x07", "it is a rar archive, which holdfast cannot read; unpack it first"),
    (b"\x7fELF", "it is a program or a library"),
    (b"\x89PNG", "it is a picture"),
    (b"%PDF-", "it is a PDF document"),
)


def container(head: bytes) -> Container | None:
    """How the file is packed; None where it is not."""
    for magic, kind in _CONTAINERS:
        if head.startswith(magic):
            return kind
    if head[:3] == b"BZh" and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return Container.BZIP2
    return Container.TAR if _is_tar(head) else None


def _is_tar(head: bytes) -> bool:
    """True for a tar header, told by its magic, or (older ones have none) by its checksum."""
    if len(head) < _TAR_BLOCK:
        return False
    if head[_TAR_MAGIC_AT : _TAR_MAGIC_AT + 5] == b"ustar":
        return True
    said = re.fullmatch(rb" *([0-7]{1,6})[ \0]{1,2}", head[148:156])
    return said is not None and int(said[1], 8) == sum(head[:148]) + 8 * 0x20 + sum(head[156:_TAR_BLOCK])


def foreign(head: bytes) -> str:
    """Why a file that is recognised is none of ours; empty for all others."""
    return next((why for magic, why in _FOREIGN if head.startswith(magic)), "")


def passed_over(name: str) -> str:
    """Why a file of this name is not read unless somebody names it; empty for all others."""
    stem, dot, ending = name.rpartition(".")
    return _SOURCE_WHY if stem and f"{dot}{ending}".lower() in _SOURCES else ""


def kind(head: bytes) -> Kind:
    """What the file is that begins so; containers are to be looked into first."""
    if head.startswith(blackbox.MAGIC):
        return Kind.BOX
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return Kind.SNAPSHOT if b"segments" in head[:_FIRST_KEY] else Kind.DUMP  # their readers refuse what is neither
    if foreign(head):
        return Kind.UNKNOWN
    name = encoding(head)
    if name is None:
        return Kind.UNKNOWN
    return _text_kind(head if name == "utf-8" else head.decode(name, errors="replace").encode())


def _text_kind(head: bytes) -> Kind:
    if _REDUCED_JSON.match(head):
        return Kind.REDUCED
    if _HISTORY_JSON.match(head):
        return Kind.HISTORY
    if _REPORT_JSON.match(head):
        return Kind.REPORT
    if _STACKS_JSON.match(head) or _STACKS_TEXT.match(head):
        return Kind.STACKS
    if _DUMP_JSON.match(head) and sum(word in head for word in _DUMP_WORDS) > 1:
        return Kind.DUMP
    return Kind.UNKNOWN if _is_document(head) else Kind.LOG


def _is_document(head: bytes) -> bool:
    """True where a short file is one JSON value, which is no log; a line of a log in JSON has a message in it."""
    if len(head) >= HEAD_BYTES or head.lstrip()[:1] not in (b"{", b"["):
        return False
    try:
        content = msgspec.json.decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return not (isinstance(content, dict) and _MESSAGES & content.keys())


@lru_cache(maxsize=2)  # it is asked for the kind, and again for itself
def encoding(head: bytes) -> str | None:
    """The encoding of text that begins so; ``utf-8`` also for what is read byte by byte; None where it is no text."""
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    unmarked = _utf16(head)
    if unmarked is not None:
        return unmarked
    text = head.lstrip(b"\0")  # a log that was cut while it was written begins with a hole
    if not text:
        return None
    share = (len(text) - len(text.translate(None, _CONTROLS))) / len(text)
    return "utf-8" if share <= (_MOST_CONTROLS if _is_utf8(text) else _MOST_CONTROLS_ELSEWHERE) else None


def _utf16(head: bytes) -> str | None:
    pairs = len(head) // 2
    if pairs < 8:
        return None
    for first, name in ((0, "utf-16-be"), (1, "utf-16-le")):
        zeros = head[first : 2 * pairs : 2].count(0)
        others = head[1 - first : 2 * pairs : 2]
        if zeros > _UTF16_ZEROS * pairs and others.count(0) < 0.02 * pairs:
            plain = others.translate(None, _CONTROLS)
            return name if len(plain) > 0.95 * len(others) and max(others) < 0x80 else None
    return None


def _is_utf8(text: bytes) -> bool:
    """True where the bytes are UTF-8, cut anywhere at their end."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(text)
    except UnicodeDecodeError:
        return False
    return True
