"""Remove secrets, e-mail addresses and names of persons from text before it is shared.

A secret becomes ``<redacted:KIND>``, or as many asterisks as it had bytes where offsets must not
change. Names of persons in paths (``/home/NAME``) become ``user1``, ``user2``, … of the same
length, consistently in a whole archive, so that paths remain comparable; optionally host names and
IP addresses too. ``secret_kinds.py`` lists the kinds of secrets; ``redact_records.py`` redacts
trace files and dumps.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import BinaryIO

from holdfast.core.redaction import secret_kinds
from holdfast.core.redaction.secret_kinds import KINDS
from holdfast.core.redaction.secret_search import Stretch, make_search
from holdfast.core.redaction.text_blocks import read_blocks

_MARK = "<redacted:{}>"
_EMAIL = re.compile(
    rb"(?<![\w.+%-])[\w.+%-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,6}[A-Za-z]{2,24}(?![\w(\[-]|\.\w)"
)
_HOME = re.compile(
    rb"(?P<before>(?:/|\\|%2[Ff])(?:home[s\d]*|[Uu]sers)(?:/|\\{1,4}|%2[Ff]))"
    rb"(?P<name>[A-Za-z0-9_](?:[\w.-]{0,62}\w)?)"
)
_PSEUDONYM = re.compile(rb"(?:user|host|ip|u|h|i)\d+_*|[uhi]|USER")
_ADDRESS = re.compile(
    rb"(?<![\w.-])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w-]|\.\d)"
)
_HEX = rb"[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){0,6}"
#: IPv6 (eight groups, or a gap) and MAC addresses; times and PCI addresses have fewer groups.
_ADDRESS6 = re.compile(
    rb"(?<![\w:.])(?:(?:[0-9a-fA-F]{1,4}:){5,7}[0-9a-fA-F]{1,4}"
    rb"|%(hex)s::(?:%(hex)s)?|::%(hex)s)(?:%%\w+)?(?![\w:])" % {b"hex": _HEX}
)
#: Host names in logs.
_HOST_IN_LOG = re.compile(
    rb"(?:^|[\s\]])([A-Za-z][\w.-]{1,62}):\d+:\d+ \[\d+\] NCCL"
    rb"|\bhost *: ([A-Za-z][\w.-]{1,62})"
    rb"|\b(?:MASTER_ADDR|HOSTNAME|SLURMD_NODENAME|SLURM_LAUNCH_NODE_IPADDR)"
    rb"\\?[\"']?[=:] *\\?[\"']?([A-Za-z][\w.-]{1,62})",
    re.MULTILINE,
)
#: The expressions that apply everywhere, in the order of redaction.
_PATTERNS = (*(kind.pattern for kind in KINDS), _EMAIL, _HOME)
_EMAIL_ROW, _HOME_ROW = len(KINDS), len(KINDS) + 1
#: Shorter texts are not searched for candidates first.
_MIN_SEARCH_BYTES = 1 << 10
_LOCAL = frozenset({b"localhost", b"127.0.0.1", b"0.0.0.0", b"255.255.255.255"})
_MAX_CACHED = 1 << 16

_KEY_BEGINS = re.compile(
    rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|Private-Lines: \d+"
)
_KEY_ENDS = re.compile(
    rb"(?:[A-Za-z0-9+/=]|\\[nr])*"
    rb"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|Private-MAC: [0-9a-f]+)"
)
_KEY_LINE = re.compile(rb"(?<![A-Za-z0-9+/=])[A-Za-z0-9+/=]{4,}(?=(?:\\[nr]|[\"',])*\s*$)")
_LONG_KEY_LINE = re.compile(rb"(?<![A-Za-z0-9+/=])[A-Za-z0-9+/=]{40,}(?=(?:\\[nr]|[\"',])*\s*$)")
#: Maximum lines of a private key, including lines of other ranks in between.
_MAX_KEY_LINES = 400


class Redactor:
    """Removes secrets from text, and counts them by kind in ``counts``.

    ``users`` are login names to replace in paths. ``hosts`` are host names to replace, with all
    host names in logs and all addresses; None keeps hosts. ``home_folders``: whether names of
    persons in paths are replaced.
    """

    def __init__(
        self,
        *,
        users: Iterable[str] = (),
        hosts: Iterable[str] | None = None,
        home_folders: bool = True,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._home_folders = home_folders
        self._names: dict[tuple[str, bytes], bytes] = {}
        self._numbers: Counter[str] = Counter()
        self._user = _any_of(
            (name.encode() for name in users if len(name) > 2),
            rb"(?P<before>[/=\\])",
            rb"(?![\w-])",
        )
        self._hosts = None if hosts is None else {name.encode() for name in hosts if len(name) > 2}
        self._host = self._host_pattern()
        self._clean: set[tuple[str, bool]] = set()

    def redact_text(self, text: str, *, fixed: bool = False) -> str:
        """Return ``text`` without secrets; with ``fixed``, of the same length in UTF-8."""
        if (text, fixed) in self._clean:
            return text
        data = self.redact_bytes(text.encode("utf-8", "surrogatepass"), fixed=fixed)
        redacted = data.decode("utf-8", "surrogatepass")
        if redacted == text:  # texts with secrets are not cached: each redaction is counted
            if len(self._clean) >= _MAX_CACHED:
                self._clean.clear()
            self._clean.add((text, fixed))
        return redacted

    def redact_bytes(self, data: bytes, *, fixed: bool = False) -> bytes:
        """Redact bytes in any ASCII-compatible encoding, as :meth:`redact_text` does."""
        return self._redact_block(_PrivateKeyMask(self, fixed=fixed)(data), fixed=fixed)

    def redact_private_keys(self, text: str, *, fixed: bool = False) -> str:
        """Return ``text`` without private keys, with the same number of lines."""
        data = text.encode("utf-8", "surrogatepass")
        return _PrivateKeyMask(self, fixed=fixed)(data).decode("utf-8", "surrogatepass")

    def redact_stream(self, source: BinaryIO, *, begins_inside: bool = False) -> Iterator[bytes]:
        """Yield the redacted content of ``source`` block by block, in constant memory.

        ``begins_inside``: the text before was cut, and may have contained the begin of a private
        key.
        """
        mask = _PrivateKeyMask(self, fixed=False, begins_inside=begins_inside)
        for block in read_blocks(source):
            yield self._redact_block(mask(block), fixed=False)

    def redact_value(self, key: str, value: str, *, fixed: bool = False) -> str:
        """Redact the value of a setting; its name ``key`` may show that it is a secret."""
        redacted = self.redact_text(value, fixed=fixed)
        data = value.encode("utf-8", "surrogatepass")
        if redacted == value and secret_kinds.is_secret(key, data):
            return self._replacement("password", data, fixed=fixed).decode()
        return redacted

    def _redact_block(self, data: bytes, *, fixed: bool) -> bytes:
        parts, at = [], 0
        for begin, end, rows in _stretches(_PATTERNS, data):
            parts += [data[at:begin], self._redact_stretch(data[begin:end], rows, fixed=fixed)]
            at = end
        data = b"".join((*parts, data[at:])) if parts else data
        if self._user is not None:
            data = self._user.sub(self._renamer("user", "home-folder"), data)
        return data if self._hosts is None else self._replace_hosts(data)

    def _redact_stretch(self, data: bytes, rows: Sequence[int], *, fixed: bool) -> bytes:
        """Apply the expressions ``rows`` (indices into _PATTERNS) to lines that belong together."""
        lowered = data.lower()
        for row in rows:
            if row < len(KINDS):
                spans = list(KINDS[row].spans(data, lowered))
                if spans:
                    data = self._replace_spans(data, spans, KINDS[row].name, fixed=fixed)
                    lowered = data.lower()
            elif row == _EMAIL_ROW and b"@" in data:
                data = _EMAIL.sub(
                    lambda match: self._replacement("e-mail", match[0], fixed=fixed), data
                )
            elif row == _HOME_ROW and self._home_folders:
                data = _HOME.sub(self._renamer("user", "home-folder"), data)
        return data

    def _replace_spans(
        self, data: bytes, spans: list[tuple[int, int]], kind: str, *, fixed: bool
    ) -> bytes:
        parts, at = [], 0
        for begin, end in spans:
            parts += [data[at:begin], self._replacement(kind, data[begin:end], fixed=fixed)]
            at = end
        return b"".join((*parts, data[at:]))

    def _replacement(self, kind: str, found: bytes, *, fixed: bool) -> bytes:
        self.counts[kind] += 1
        return b"*" * len(found) if fixed else _MARK.format(kind).encode()

    def _replace_hosts(self, data: bytes) -> bytes:
        assert self._hosts is not None  # noqa: S101 - the only caller checks it
        names = {
            name
            for begin, end, _ in _stretches((_HOST_IN_LOG,), data)
            for match in _HOST_IN_LOG.finditer(data, begin, end)
            for name in match.groups()
            if name
        }
        new = {
            name for name in names if name not in _LOCAL and not _PSEUDONYM.fullmatch(name)
        } - self._hosts
        if new:
            self._hosts |= new
            self._host = self._host_pattern()
        if self._host is not None:
            data = self._host.sub(self._renamer("host", "host-name"), data)
        parts, at = [], 0
        for begin, end, _ in _stretches((_ADDRESS, _ADDRESS6), data):
            text = _ADDRESS.sub(self._renamer("ip", "ip-address"), data[begin:end])
            parts += [data[at:begin], _ADDRESS6.sub(self._renamer("ip", "ip-address"), text)]
            at = end
        return b"".join((*parts, data[at:]))

    def _host_pattern(self) -> re.Pattern[bytes] | None:
        return _any_of(self._hosts or (), rb"(?<![\w.-])", rb"(?:\.[A-Za-z][\w-]*)*(?![\w-])")

    def _renamer(self, kind: str, counted: str) -> Callable[[re.Match[bytes]], bytes]:
        def rename(match: re.Match[bytes]) -> bytes:
            groups = match.groupdict()
            name, before = groups.get("name") or match[0], groups.get("before") or b""
            if name in _LOCAL or _PSEUDONYM.fullmatch(name):
                return match[0]
            self.counts[counted] += 1
            return before + self._pseudonym(kind, name)

        return rename

    def _pseudonym(self, kind: str, name: bytes) -> bytes:
        """Return ``user1`` or ``u1``, padded to the length of ``name``; the same each time."""
        known = self._names.get((kind, name))
        if known is None:
            self._numbers[kind] += 1
            number = b"%d" % self._numbers[kind]
            word = kind.encode() if len(kind) + len(number) <= len(name) else kind[:1].encode()
            known = self._names[kind, name] = (word + number)[: len(name)].ljust(len(name), b"_")
        return known


class _PrivateKeyMask:
    """Removes PEM private keys, on one line or several, even between lines of other ranks."""

    def __init__(self, redactor: Redactor, *, fixed: bool, begins_inside: bool = False) -> None:
        self._redactor, self._fixed = redactor, fixed
        self._left = _MAX_KEY_LINES if begins_inside else 0
        self._line = _LONG_KEY_LINE if begins_inside else _KEY_LINE

    def __call__(self, block: bytes) -> bytes:
        if not self._left and _KEY_BEGINS.search(block) is None:
            return block
        return b"".join(self._mask_line(line) for line in block.splitlines(keepends=True))

    def _mask_line(self, line: bytes) -> bytes:
        if self._left:
            self._left -= 1
            end = _KEY_ENDS.search(line)
            if end is None:
                return self._line.sub(lambda match: self._mask(match[0]), line)
            self._left = 0
            line = line[: end.start()] + self._mask(end[0]) + line[end.end() :]
        begin = _KEY_BEGINS.search(line)
        if begin is None:
            return line
        self._redactor.counts["private-key"] += 1
        end = _KEY_ENDS.search(line, begin.end())
        if end is not None:
            return (
                line[: begin.start()]
                + self._mask(line[begin.start() : end.end()])
                + self._mask_line(line[end.end() :])
            )
        self._left, self._line = _MAX_KEY_LINES, _KEY_LINE
        stop = len(line.rstrip(b"\r\n"))
        return line[: begin.start()] + self._mask(line[begin.start() : stop]) + line[stop:]

    def _mask(self, found: bytes) -> bytes:
        return b"*" * len(found) if self._fixed else _MARK.format("private-key").encode()


_searcher = lru_cache(maxsize=4)(make_search)


def _stretches(patterns: tuple[re.Pattern[bytes], ...], data: bytes) -> Iterator[Stretch]:
    """Return where which of these expressions may match; a short text as a whole."""
    if len(data) < _MIN_SEARCH_BYTES:
        return iter([(0, len(data), range(len(patterns)))])
    return _searcher(patterns)(data)


def _any_of(names: Iterable[bytes], before: bytes, after: bytes) -> re.Pattern[bytes] | None:
    """Return an expression for any of these names, the longest first."""
    ordered = sorted(set(names), key=len, reverse=True)
    if not ordered:
        return None
    names_pattern = b"|".join(map(re.escape, ordered))
    return re.compile(before + b"(?P<name>(?:" + names_pattern + b")" + after + b")")
