"""Prefixes that no pattern in ``lines.py`` matches, learned from the log itself.

Some lines are known to begin a line of a program: the header of a traceback, its frames, the rows
of torchrun's table of failures. What precedes two different ones of them in the same form is the
prefix of this log (of stern, syslog, or a logger's own format). It is stripped from later lines.
"""

from __future__ import annotations

import re

_LANDMARKS = re.compile(
    r"\s*(?:(?P<header>Traceback \(most recent call last\):)"
    r"|(?P<frame>File \"[^\"\n]{1,400}\", line \d)"
    r"|(?P<table>Root Cause \(first observed failure\):)"
    r"|(?P<row>(?:time|host|rank|exitcode) {1,8}: ))"
)
_MARKS = ("Traceback (", 'File "', "Root Cause (", " : ")
_MAX_CHARACTERS = 200
_MAX_PREFIXES = 8
_VARIABLE = re.compile(
    r"(?P<word>[\w.-]*\d[\w.-]*)|(?P<level>\b(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\b)"
    r"|(?P<space>\s+)",
    re.IGNORECASE,
)
_FORMS = {"word": r"[\w.-]+", "level": r"\w+", "space": r"\s+"}


class LearnedPrefixes:
    """The prefixes of one log."""

    def __init__(self) -> None:
        self._seen: dict[str, set[str]] = {}
        self._learned: list[re.Pattern[str]] = []

    def split(self, text: str) -> tuple[str, str]:
        """Return the prefix of a line, empty if there is none, and the text after it."""
        if any(mark in text for mark in _MARKS):
            found = _LANDMARKS.search(text, 0, _MAX_CHARACTERS + 400)
            if found is not None:
                begin = found.start()
                if text[:begin].strip():
                    self._learn(text[:begin], str(found.lastgroup))
                    return text[:begin], text[begin:].removeprefix(" ")
                return "", text
        for expression in self._learned:
            if (match := expression.match(text)) is not None:
                return text[: match.end()], text[match.end() :]
        return "", text

    def _learn(self, prefix: str, landmark: str) -> None:
        if len(prefix) > _MAX_CHARACTERS or len(self._learned) >= _MAX_PREFIXES:
            return
        form = _form_of(prefix.rstrip())
        landmarks = self._seen.setdefault(form, set())
        landmarks.add(landmark)
        if len(landmarks) == 2:
            self._learned.append(re.compile(f"{form} ?"))
        if len(self._seen) > _MAX_PREFIXES:
            del self._seen[next(iter(self._seen))]


def _form_of(prefix: str) -> str:
    """Return an expression for prefixes like this one: numbers and levels differ."""
    parts, at = [], 0
    for found in _VARIABLE.finditer(prefix):
        parts += [re.escape(prefix[at : found.start()]), _FORMS[str(found.lastgroup)]]
        at = found.end()
    return "".join((*parts, re.escape(prefix[at:])))
