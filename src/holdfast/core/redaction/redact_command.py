"""Remove secrets from the arguments of a command that is shown to people."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.redaction.redact import Redactor


def redact_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return command-line arguments without secrets; paths are kept, so the command still runs.

    A value is a secret by its form, or by the name of its option (``--api-key VALUE``,
    ``--api-key=VALUE``, ``logger.token=VALUE``).
    """
    redactor = Redactor(home_folders=False)
    redacted, option = [], ""
    for word in arguments:
        name, equals, value = word.partition("=")
        if equals and not option:
            redacted.append(f"{name}={redactor.redact_value(name.lstrip('-'), value)}")
        else:
            redacted.append(redactor.redact_value(option, word))
        option = word.lstrip("-") if word.startswith("-") and not equals else ""
    return tuple(redacted)
