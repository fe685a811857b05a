"""Leaves secrets, e-mail addresses and names of people out of texts, before anybody else gets to see them.

A secret becomes ``<redacted:KIND>``, or as many asterisks as it had bytes where no offset may change. Names of people
in paths (``/home/NAME``) become ``user1``, ``user2``, … of the same length, the same one everywhere in an archive, so
that paths can still be compared; names of hosts and addresses likewise, where that is asked for. What kinds of secret
there are stands in ``secret_kinds.py``; boxes and dumps are taken care of in ``redact_records.py``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import BinaryIO

from holdfast.actions import secret_kinds
from holdfast.actions.secret_kinds import KINDS
from holdfast.actions.secret_search import Stretch, searcher
from holdfast.actions.text_blocks import blocks

_MARK = "<redacted:{}>"
_EMAIL = re.compile(rb"(?<![\w.+%-])[\w.+%-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,6}[A-Za-z]{2,24}(?![\w(\[-]|\.\w)")
_HOME = re.compile(
    rb"(?P<before>(?:/|\\|%2[Ff])(?:home[s\d]*|[Uu]sers)(?:/|\\{1,4}|%2[Ff]))"
    rb"(?P<name>[A-Za-z0-9_](?:[\w.-]{0,62}\w)?)"
)
_PSEUDONYM = re.compile(rb"(?:user|host|ip|u|h|i)\d+_*|[uhi]|USER")
_ADDRESS = re.compile(rb"(?<![\w.-])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w-]|\.\d)")
_HEX = rb"[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){0,6}"
#: Of IPv6 (all eight groups, or a gap) and of network cards; the time of day and a PCI address have fewer groups.
_ADDRESS6 = re.compile(
    rb"(?<![\w:.])(?:(?:[0-9a-fA-F]{1,4}:){5,7}[0-9a-fA-F]{1,4}|" + _HEX + rb"::(?:" + _HEX + rb")?|::" + _HEX + rb")"
    rb"(?:%\w+)?(?![\w:])"
)
#: Where a log names the host that wrote a line, or another one.
_HOST_SAID = re.compile(
    rb"(?:^|[\s\]])([A-Za-z][\w.-]{1,62}):\d+:\d+ \[\d+\] NCCL"
    rb"|\bhost *: ([A-Za-z][\w.-]{1,62})"
    rb"|\b(?:MASTER_ADDR|HOSTNAME|SLURMD_NODENAME|SLURM_LAUNCH_NODE_IPADDR)"
    rb"\\?[\"']?[=:] *\\?[\"']?([A-Za-z][\w.-]{1,62})",
    re.MULTILINE,
)
#: All that is looked for everywhere, in the order in which it is taken out.
_PATTERNS = (*(kind.pattern for kind in KINDS), _EMAIL, _HOME)
_EMAIL_ROW, _HOME_ROW = len(KINDS), len(KINDS) + 1
#: A text shorter than this is not worth a search for candidates.
_SMALL_BYTES = 1 << 10
_LOCAL = frozenset({b"localhost", b"127.0.0.1", b"0.0.0.0", b"255.255.255.255"})
_MOST_CACHED = 1 << 16

_KEY_BEGINS = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|Private-Lines: \d+")
_KEY_ENDS = re.compile(
    rb"(?:[A-Za-z0-9+/=]|\\[nr])*(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|Private-MAC: [0-9a-f]+)"
)
_KEY_LINE = re.compile(rb"(?<![A-Za-z0-9+/=])[A-Za-z0-9+/=]{4,}(?=(?:\\[nr]|[\"',])*\s*$)")
_LONG_KEY_LINE = re.compile(rb"(?<![A-Za-z0-9+/=])[A-Za-z0-9+/=]{40,}(?=(?:\\[nr]|[\"',])*\s*$)")
#: How many lines after its beginning the end of a private key is waited for (other ranks may write in between).
_KEY_LINES = 400


class Redactor:
    """Takes secrets out of texts, and counts them by kind in ``counts``.

    ``users`` are login names that are replaced wherever a path has them as a part. ``hosts`` are names of hosts to
    replace, along with those that logs tell and all addresses; None keeps them.
    """

    def __init__(self, *, users: Iterable[str] = (), hosts: Iterable[str] | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self._names: dict[tuple[str, bytes], bytes] = {}
        self._numbers: Counter[str] = Counter()
        self._user = _one_of((name.encode() for name in users if len(name) > 2), rb"(?P<before>[/=\\])", rb"(?![\w-])")
        self._hosts = None if hosts is None else {name.encode() for name in hosts if len(name) > 2}
        self._host = self._host_pattern()
        self._cache: dict[tuple[str, bool], str] = {}

    def text(self, text: str, *, fixed: bool = False) -> str:
        """``text`` without secrets; with ``fixed``, of the same length in UTF-8."""
        known = self._cache.get((text, fixed))
        if known is None:
            data = self.data(text.encode("utf-8", "surrogatepass"), fixed=fixed)
            known = data.decode("utf-8", "surrogatepass")
            if known == text:  # what was taken out is counted each time, and so is not remembered
                self._remember(text, fixed, known)
        return known

    def _remember(self, text: str, fixed: bool, known: str) -> None:  # noqa: FBT001 - part of a key
        if len(self._cache) >= _MOST_CACHED:
            self._cache.clear()
        self._cache[text, fixed] = known

    def data(self, data: bytes, *, fixed: bool = False) -> bytes:
        """As :meth:`text`, for bytes in any encoding that holds ASCII as it is."""
        return self._block(_KeyMask(self, fixed=fixed)(data), fixed=fixed)

    def without_keys(self, text: str, *, fixed: bool = False) -> str:
        """``text`` without private keys, with as many lines; everything else stays."""
        return _KeyMask(self, fixed=fixed)(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def stream(self, source: BinaryIO, *, begins_inside: bool = False) -> Iterator[bytes]:
        """The redacted content of ``source``, block by block, in constant memory.

        ``begins_inside`` says that the text before was left out, which may have held the beginning of a private key.
        """
        mask = _KeyMask(self, fixed=False, begins_inside=begins_inside)
        for block in blocks(source):
            yield self._block(mask(block), fixed=False)

    def value(self, key: str, value: str, *, fixed: bool = False) -> str:
        """As :meth:`text`, for the value of something called ``key``, which may say that it is a secret."""
        clean = self.text(value, fixed=fixed)
        found = value.encode("utf-8", "surrogatepass")
        if clean == value and secret_kinds.is_secret(key, found):
            return self._replaced("password", found, fixed=fixed).decode()
        return clean

    def _block(self, data: bytes, *, fixed: bool) -> bytes:
        parts, at = [], 0
        for begin, end, rows in _stretches(_PATTERNS, data):
            parts += [data[at:begin], self._stretch(data[begin:end], rows, fixed=fixed)]
            at = end
        data = b"".join((*parts, data[at:])) if parts else data
        if self._user is not None:
            data = self._user.sub(self._renamed("user", "home-folder"), data)
        return data if self._hosts is None else self._without_hosts(data)

    def _stretch(self, data: bytes, rows: Sequence[int], *, fixed: bool) -> bytes:
        """Try the expressions ``rows`` (numbers in _PATTERNS) on lines that belong together."""
        lowered = data.lower()
        for row in rows:
            if row < len(KINDS):
                spans = list(KINDS[row].spans(data, lowered))
                if spans:
                    data = self._without(data, spans, KINDS[row].name, fixed=fixed)
                    lowered = data.lower()
            elif row == _EMAIL_ROW and b"@" in data:
                data = _EMAIL.sub(lambda match: self._replaced("e-mail", match[0], fixed=fixed), data)
            elif row == _HOME_ROW:
                data = _HOME.sub(self._renamed("user", "home-folder"), data)
        return data

    def _without(self, data: bytes, spans: list[tuple[int, int]], kind: str, *, fixed: bool) -> bytes:
        parts, at = [], 0
        for begin, end in spans:
            parts += [data[at:begin], self._replaced(kind, data[begin:end], fixed=fixed)]
            at = end
        return b"".join((*parts, data[at:]))

    def _replaced(self, kind: str, found: bytes, *, fixed: bool) -> bytes:
        self.counts[kind] += 1
        return b"*" * len(found) if fixed else _MARK.format(kind).encode()

    def _without_hosts(self, data: bytes) -> bytes:
        assert self._hosts is not None  # noqa: S101 - asked for by the only caller
        said = {
            name
            for begin, end, _ in _stretches((_HOST_SAID,), data)
            for match in _HOST_SAID.finditer(data, begin, end)
            for name in match.groups()
            if name
        }
        new = {name for name in said if name not in _LOCAL and not _PSEUDONYM.fullmatch(name)} - self._hosts
        if new:
            self._hosts |= new
            self._host = self._host_pattern()
        if self._host is not None:
            data = self._host.sub(self._renamed("host", "host-name"), data)
        parts, at = [], 0
        for begin, end, _ in _stretches((_ADDRESS, _ADDRESS6), data):
            text = _ADDRESS.sub(self._renamed("ip", "ip-address"), data[begin:end])
            parts += [data[at:begin], _ADDRESS6.sub(self._renamed("ip", "ip-address"), text)]
            at = end
        return b"".join((*parts, data[at:]))

    def _host_pattern(self) -> re.Pattern[bytes] | None:
        return _one_of(self._hosts or (), rb"(?<![\w.-])", rb"(?:\.[A-Za-z][\w-]*)*(?![\w-])")

    def _renamed(self, kind: str, counted: str) -> Callable[[re.Match[bytes]], bytes]:
        def rename(match: re.Match[bytes]) -> bytes:
            groups = match.groupdict()
            name, before = groups.get("name") or match[0], groups.get("before") or b""
            if name in _LOCAL or _PSEUDONYM.fullmatch(name):
                return match[0]
            self.counts[counted] += 1
            return before + self._pseudonym(kind, name)

        return rename

    def _pseudonym(self, kind: str, name: bytes) -> bytes:
        """Of the same length as ``name``, and the same each time: user1, or u1 where that is too long."""
        known = self._names.get((kind, name))
        if known is None:
            self._numbers[kind] += 1
            number = b"%d" % self._numbers[kind]
            word = kind.encode() if len(kind) + len(number) <= len(name) else kind[:1].encode()
            known = self._names[kind, name] = (word + number)[: len(name)].ljust(len(name), b"_")
        return known


class _KeyMask:
    """Takes private keys in PEM out of text, on one line or over many, also with other ranks' lines in between."""

    def __init__(self, redactor: Redactor, *, fixed: bool, begins_inside: bool = False) -> None:
        self._redactor, self._fixed = redactor, fixed
        self._left = _KEY_LINES if begins_inside else 0
        self._line = _LONG_KEY_LINE if begins_inside else _KEY_LINE

    def __call__(self, block: bytes) -> bytes:
        if not self._left and _KEY_BEGINS.search(block) is None:
            return block
        return b"".join(self._one(line) for line in block.splitlines(keepends=True))

    def _one(self, line: bytes) -> bytes:
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
            return line[: begin.start()] + self._mask(line[begin.start() : end.end()]) + self._one(line[end.end() :])
        self._left, self._line = _KEY_LINES, _KEY_LINE
        stop = len(line.rstrip(b"\r\n"))
        return line[: begin.start()] + self._mask(line[begin.start() : stop]) + line[stop:]

    def _mask(self, found: bytes) -> bytes:
        return b"*" * len(found) if self._fixed else _MARK.format("private-key").encode()


_searcher = lru_cache(maxsize=4)(searcher)


def _stretches(patterns: tuple[re.Pattern[bytes], ...], data: bytes) -> Iterator[Stretch]:
    """Where which of these expressions may match; all of a short text."""
    if len(data) < _SMALL_BYTES:
        return iter([(0, len(data), range(len(patterns)))])
    return _searcher(patterns)(data)


def _one_of(names: Iterable[bytes], before: bytes, after: bytes) -> re.Pattern[bytes] | None:
    """An expression for any of these names, the longest first."""
    ordered = sorted(set(names), key=len, reverse=True)
    return (
        re.compile(before + b"(?P<name>(?:" + b"|".join(map(re.escape, ordered)) + b")" + after + b")")
        if ordered
        else None
    )
