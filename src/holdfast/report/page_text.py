"""Prepare untrusted text for a page: bounded length, and code spans for names and source lines."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from holdfast.core.text import escape_invisible, one_line

#: Maximum characters of one text on a page; the JSON documents contain the whole text.
MAX_CHARACTERS = 2000
#: Text between backticks, and source lines (``train.py:41``), are code.
_CODE = re.compile(r"`([^`\n]+)`|((?<![\w/])[\w./~-]{1,200}\.py:\d+(?!\w))")
#: An option (``--max-restarts``) in escaped text; it is not wrapped after a hyphen.
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]{1,40}")
#: Words that may begin a sentence of a verdict in lower case; names in code keep their case.
_WORDS = re.compile(
    r"(?:accuracy|action|all|any|asleep|each|efficiency|every|in|it|no|only|there|ranks?|the|this)\b(?![.(\[=_])"
)


def clip(text: str, limit: int = MAX_CHARACTERS) -> str:
    """Return ``text`` with at most ``limit`` characters; a cut text ends with ``…``."""
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def render_code(text: str, limit: int = MAX_CHARACTERS) -> Markup:
    """Return ``text`` as escaped HTML in which code spans and source lines are code elements."""
    parts: list[Markup] = []
    shown, end = escape_invisible(clip(text, limit)), 0
    for match in _CODE.finditer(shown):
        parts += [escape(shown[end : match.start()]), Markup("<code>")]
        parts += [escape(match[1] or match[2]), Markup("</code>")]
        end = match.end()
    return _keep_options(Markup("").join([*parts, escape(shown[end:])]))


def render_command(command: str) -> Markup:
    """Return a command as escaped HTML whose options are not wrapped after a hyphen."""
    return _keep_options(escape(escape_invisible(command)))


def _keep_options(text: Markup) -> Markup:
    return Markup(_OPTION.sub(r'<span class="option">\g<0></span>', str(text)))  # noqa: S704 - escaped


def sentence(text: str, limit: int) -> str:
    """Return ``text`` as one bounded sentence with a capital letter and a full stop."""
    line = clip(one_line(text), limit)
    if _WORDS.match(line):
        line = line[0].upper() + line[1:]
    return line if line.endswith((".", "…", "!", "?")) else f"{line}."


def short_place(place: str) -> str:
    """Return ``train.py:41 in main()`` for ``/home/me/train.py:41 in main()``."""
    path, colon, line = one_line(place).partition(":")
    return path.rsplit("/", 1)[-1] + colon + line


def breakable(place: str) -> Markup:
    """Return ``place`` as escaped HTML that may be wrapped before the line number."""
    return escape(escape_invisible(place)).replace(":", Markup("<wbr>:"))
