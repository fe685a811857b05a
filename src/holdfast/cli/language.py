"""``--lang``: the language of summaries and remedies."""

from __future__ import annotations

import click

LANGUAGES = ("en", "zh")


def _choose(_context: click.Context, _option: click.Parameter, language: str | None) -> None:
    """Choose the language of the option, or check that of the variable. Raises InvalidValue."""
    from holdfast.core import settings

    if language is None:
        settings.read_text("HOLDFAST_LANG")
    else:
        settings.set_variable("HOLDFAST_LANG", language)


#: Choose the language of cause summaries, remedies and labels in text output.
language_option = click.option(
    "--lang",
    type=click.Choice(LANGUAGES),
    expose_value=False,
    callback=_choose,
    help="Language of cause summaries, remedies and labels (default: $HOLDFAST_LANG, or your "
    "locale's).",
)
