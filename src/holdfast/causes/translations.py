"""Texts of the catalogue, and labels of its reports, in other languages than English.

``zh/*.json`` maps each English text to its translation, by cause. A text without a translation, for
example one that was changed, is shown in English, and a test lists it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from holdfast.causes import all_causes
from holdfast.core import settings

#: Languages, as `--lang` names them -> characters that the output must be able to show.
LANGUAGES: Mapping[str, str] = {"en": "", "zh": "中文"}
#: Variables that choose the language of messages, by precedence (POSIX).
_LOCALE_VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")

Translate = Callable[[str], str]


@cache
def translations(language: str) -> Mapping[str, Mapping[str, str]]:
    """Return the translations by cause, or group of texts: English text -> translated text."""
    entries: dict[str, Mapping[str, str]] = {}
    for file in sorted(Path(__file__).with_name(language).glob("*.json")):
        entries |= json.loads(file.read_text("utf-8"))
    return entries


def chosen_language(environ: Mapping[str, str] | None = None) -> str:
    """Return ``$HOLDFAST_LANG``, or the language of the user's locale; ``en`` if it is another.

    Raises:
        InvalidValue: ``$HOLDFAST_LANG`` is not one of LANGUAGES.
    """
    if chosen := settings.read_text("HOLDFAST_LANG", environ):
        return chosen
    values = (settings.read_text(name, environ) for name in _LOCALE_VARIABLES)
    locale = next(filter(None, values), "")
    return locale[:2] if locale[:2] in LANGUAGES else "en"


def translator(encoding: str | None = None) -> Translate:
    """Return a function that translates known texts into the chosen language, and keeps others.

    It keeps all if ``encoding`` (None: any) cannot represent the language.
    """
    language = chosen_language()
    try:
        LANGUAGES[language].encode(encoding or "utf-8")
    except (UnicodeError, LookupError):
        language = "en"
    return translate_to(language)


def translated_summary(cause: str, translate: Translate) -> str:
    """Return the translated summary of the cause with this name; empty if there is none."""
    if translate is str:
        return ""
    summary = next((each.summary for each in all_causes() if each.name == cause), "")
    text = translate(summary)
    return "" if text == summary else text


@cache
def translate_to(language: str) -> Translate:
    """Return a function that translates known texts into ``language``, and keeps others."""
    if language == "en":
        return str
    texts = {
        english: text
        for entry in translations(language).values()
        for english, text in entry.items()
    }
    return lambda text: texts.get(text, text)
