"""Variables set in the environment and in NCCL's configuration files.

NCCL reads $NCCL_CONF_FILE (else ~/.nccl.conf) and then /etc/nccl.conf, and does not overwrite
variables that are set (src/misc/param.cc). :mod:`holdfast.host.launch_files` reads launch scripts
and programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.core.findings import Unknown
from holdfast.core.variable_table import ReadMoment, is_relevant
from holdfast.host.environment import is_relevant_variable, redact_value
from holdfast.host.processes import proc

ENVIRONMENT = "environment"
#: File of variables that DeepSpeed's launcher sends to all hosts, in addition to those of a few
#: prefixes.
DEEPSPEED_FILE = ".deepspeed_env"
_SYSTEM_FILE = "/etc/nccl.conf"
_MAX_SHOWN = 120


def truncate(text: str) -> str:
    """Shorten a text of the user's for a message."""
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


class VariableSetting(msgspec.Struct, frozen=True, kw_only=True):
    """A variable that is set. ``value`` is None if it is only known at run time.

    ``origin`` is ``environment`` or a file. ``exported``: child processes inherit it (False for a
    shell variable). ``command_line``: line of the single command for which it is set, None if it is
    set for all that follow. ``sender``: line on which DeepSpeed's launcher, which forwards few
    variables, starts the ranks of other hosts with it. ``done_before``: what the program has
    certainly done before it sets the variable, with lines: it is too late for code that reads it
    then.
    """

    name: str
    value: str | None
    origin: str = ENVIRONMENT
    line: int | None = None
    exported: bool = True
    command_line: int | None = None
    sender: int | None = None
    done_before: tuple[tuple[ReadMoment, int], ...] = ()

    def __str__(self) -> str:
        """Return ``NAME=value``, redacted and shortened for a message."""
        if self.value is None:
            return self.name
        return f"{self.name}={truncate(redact_value(self.name, self.value))}"

    @property
    def location(self) -> str:
        """Where it is set, for display."""
        return self.origin if self.line is None else f"{self.origin}:{self.line}"


def from_environment(environ: Mapping[str, str]) -> tuple[VariableSetting, ...]:
    """Return the non-empty variables of an environment that the job may read."""
    return tuple(
        VariableSetting(name=name, value=value)
        for name, value in sorted(environ.items())
        if value and (is_relevant_variable(name) or is_relevant(name))
    )


def from_nccl_files(
    environ: Mapping[str, str], root: str = "/"
) -> tuple[tuple[VariableSetting, ...], tuple[str, ...]]:
    """Return the variables that only NCCL's files set, and the unreadable files."""
    own = environ.get("NCCL_CONF_FILE") or (
        f"{environ['HOME']}/.nccl.conf" if environ.get("HOME") else ""
    )
    names = {name for name, value in environ.items() if value}
    settings: list[VariableSetting] = []
    unseen: list[str] = []
    for file in (own, _SYSTEM_FILE):
        if not file:
            continue
        path = Path(root, file.lstrip("/")) if file.startswith("/") else Path(file)
        content = proc.read_text(path) if not path.is_dir() else Unknown(f"{path} is a directory")
        if isinstance(content, Unknown):
            if not isinstance(content, proc.ProcessGone):
                unseen.append(content.why)
            continue
        for number, text in enumerate(content.splitlines(), 1):
            name, sign, value = text.strip().partition("=")
            if sign and not name.startswith("#") and name.strip() not in names:
                names.add(name.strip())
                settings.append(
                    VariableSetting(
                        name=name.strip(), value=value.strip(), origin=file, line=number
                    )
                )
    return tuple(settings), tuple(unseen)
