"""Variables that are set, and where: in the environment, and in the files from which NCCL takes more.

NCCL reads $NCCL_CONF_FILE (else ~/.nccl.conf) and then /etc/nccl.conf, and leaves alone what is set already (src/misc/
param.cc). What launch scripts and programs set is read by :mod:`holdfast.facts.launch_files`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.facts import proc
from holdfast.facts.environment import matters
from holdfast.findings import Unknown
from holdfast.variables import Moment, concerns

ENVIRONMENT = "environment"
#: Variables that DeepSpeed's launcher sends to all hosts, beside those of a few prefixes.
DEEPSPEED_FILE = ".deepspeed_env"
_SYSTEM_FILE = "/etc/nccl.conf"


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A variable that is set. ``value`` is None where only the run itself will know it.

    ``origin`` is ``environment`` or a file; ``handed_on``: children get it (False for a shell's own variable);
    ``passed``: what the program has certainly done before it sets it, so that it comes too late for whom reads it then.
    ``of_command``: the line of the one command for which it is set, None where it is for all that follow.
    ``sender``: the line on which DeepSpeed's launcher, which sends few variables on, starts other hosts' ranks with it.
    """

    name: str
    value: str | None
    origin: str = ENVIRONMENT
    line: int | None = None
    handed_on: bool = True
    of_command: int | None = None
    sender: int | None = None
    passed: tuple[tuple[Moment, int], ...] = ()

    @property
    def place(self) -> str:
        """Where it is set, for people."""
        return self.origin if self.line is None else f"{self.origin}:{self.line}"


def in_environment(environ: Mapping[str, str]) -> tuple[Given, ...]:
    """Those variables of an environment that somebody in the job may read, and are not empty."""
    return tuple(
        Given(name=name, value=value)
        for name, value in sorted(environ.items())
        if value and (matters(name) or concerns(name))
    )


def in_nccl_files(environ: Mapping[str, str], root: str = "/") -> tuple[tuple[Given, ...], tuple[str, ...]]:
    """What NCCL takes from its files besides ``environ``, and why files could not be read."""
    own = environ.get("NCCL_CONF_FILE") or (f"{environ['HOME']}/.nccl.conf" if environ.get("HOME") else "")
    taken, found, unseen = {name for name, value in environ.items() if value}, [], []
    for file in (own, _SYSTEM_FILE):
        if not file:
            continue
        path = Path(root, file.lstrip("/")) if file.startswith("/") else Path(file)
        content = proc.text(path) if not path.is_dir() else Unknown(f"{path} is a folder")
        if isinstance(content, Unknown):
            if not isinstance(content, proc.Gone):
                unseen.append(content.why)
            continue
        for number, text in enumerate(content.splitlines(), 1):
            name, sign, value = text.strip().partition("=")
            if sign and not name.startswith("#") and name.strip() not in taken:
                taken.add(name.strip())
                found.append(Given(name=name.strip(), value=value.strip(), origin=file, line=number))
    return tuple(found), tuple(unseen)
