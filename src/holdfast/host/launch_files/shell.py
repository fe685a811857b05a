"""Parses the variables that shell scripts, Dockerfiles and files of NAME=value lines set.

Lines are split by shlex, and NAME=value counts wherever a launcher accepts it: after export, before
a command, after -x, -e and --env, in --export=ALL,A=1. Conditions are not evaluated: every line
counts as reached.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from msgspec.structs import replace

from holdfast.core.variable_table import VariableStatus, is_relevant, variable_entries
from holdfast.host.launch_files import deepspeed
from holdfast.host.variable_sources import VariableSetting

_PAIR = re.compile(r"(?:-[xe]|-D)?([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_EXPORT_OPTION = re.compile(r"--(?:export|env|environment|envs|container-env)=(.*)", re.DOTALL)
#: Commands that set a variable for all later ones; before any other command it is set for that one
#: only.
_SETTING_COMMANDS = frozenset(
    {"export", "setenv", "declare", "typeset", "readonly", "local", "echo", "printf"}
)
#: Commands whose arguments are text, not settings.
_TEXT_COMMANDS = frozenset(
    """
    echo printf grep sed awk unset test [ [[ if elif while case
    """.split()
)
_OPERATORS = frozenset(
    {";", "&&", "||", "|", "&", "(", ")", ";;", "\n", "{", "}", "then", "do", "else"}
)
_USED = re.compile(r"\$\{?(\w+)")
_SLURM = re.compile(r"^\s*#\s*SBATCH\s+(.*)")
_MAX_DEPTH = 3
#: Maximum number of variables in one file.
MAX_SETTINGS = 2000


class ShellUnreadable(ValueError):
    """The file does not have the format that its name indicates."""


def is_of_interest(name: str) -> bool:
    """Return whether the name is one that the job may read, or similar to one."""
    return is_relevant(name)


def read_shell(text: str, origin: str) -> Iterator[VariableSetting]:
    """Yield what a script sets, line by line, without names that only the script itself uses.

    Raises Unreadable if it sets more than MAX_SETTINGS.
    """
    settings = list(islice(_script(text, origin), MAX_SETTINGS + 1))
    if len(settings) > MAX_SETTINGS:
        raise ShellUnreadable(f"more than {MAX_SETTINGS:,} variables; not a launch script")
    exported_names = {setting.name for setting in settings if setting.exported}
    exported_names |= set(
        re.findall(r"^\s*(?:export|declare -x)\s+([A-Z][A-Z0-9_]*)\s*(?:#.*)?$", text, re.MULTILINE)
    )
    senders = list(_senders(text)) if "deepspeed" in text or "ds " in text else []
    used = set(_USED.findall(text))
    exports_all = re.search(r"^\s*set\s+(-\w*a|-o allexport)\b", text, re.MULTILINE)
    for setting in settings:
        name = setting.name
        exported = setting.exported or name in exported_names or bool(exports_all)
        if not _is_script_variable(name, used, exported=exported) and (
            exported or name not in used
        ):
            sender = _sender(setting, senders) if exported else None
            yield replace(setting, exported=exported, sender=sender)


def _senders(text: str) -> Iterator[int]:
    """Yield the lines on which DeepSpeed's launcher starts ranks of several hosts."""
    for number, line in _logical_lines(text):
        if any(deepspeed.starts_several_hosts(command) for command in _commands(line)):
            yield number


def _sender(setting: VariableSetting, senders: Sequence[int]) -> int | None:
    """Return the first of these lines at or after the setting."""
    index = bisect_left(senders, setting.line or 0)
    line = senders[index] if index < len(senders) else None
    return line if setting.command_line in (None, line) else None


def read_pairs(text: str, origin: str) -> Iterator[VariableSetting]:
    """Parse lines of NAME=value, as in .env, .deepspeed_env and nccl.conf."""
    for number, line in enumerate(text.splitlines(), 1):
        name, sign, value = line.strip().removeprefix("export ").partition("=")
        if sign and not name.startswith("#") and is_of_interest(name.strip()):
            yield VariableSetting(
                name=name.strip(), value=value.strip().strip("'\""), origin=origin, line=number
            )


def read_dockerfile(text: str, origin: str) -> Iterator[VariableSetting]:
    """Parse a Dockerfile: ENV persists; what RUN exports ends with its line.

    What RUN writes to files persists.
    """
    for number, line in _logical_lines(text):
        instruction, _, rest = line.strip().partition(" ")
        match instruction.upper():
            case "ENV":
                first = rest.split(None, 1)
                if first and "=" not in first[0] and len(first) == 2:
                    rest = f"{first[0]}={shlex.quote(first[1])}"
                yield from _pairs(_words(rest), origin, number, exported=True)
            case "RUN":
                commands = [command for command in re.split(r"&&|;", rest) if command.strip()]
                exported = all(command.split()[0] == "export" for command in commands)
                for command in commands:
                    if exported or command.split()[0] in ("echo", "printf"):
                        for setting in _line(command, origin, number):
                            yield replace(setting, exported=not exported)
            case "CMD" | "ENTRYPOINT":
                yield from _line(rest, origin, number)


def _script(text: str, origin: str) -> Iterator[VariableSetting]:
    for number, line in _logical_lines(text):
        if slurm := _SLURM.match(line):
            yield from _pairs(_words(slurm[1]), origin, number, exported=True)
        elif not line.lstrip().startswith("#"):
            yield from _line(line, origin, number)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield logical lines (backslash continuations joined) with the number of their first line."""
    start = 0
    parts: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        start = start or number
        if line.lstrip().startswith("#") and parts:
            continue  # a comment between continued lines, as in Dockerfiles
        if line.endswith("\\") and not line.endswith("\\\\"):
            parts.append(line[:-1])
            continue
        yield start, " ".join([*parts, line])
        start, parts = 0, []
    if parts:
        yield start, " ".join(parts)


def _words(line: str) -> list[str]:
    """Split a line like the shell; by whitespace if quotes are unbalanced."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=";&|()")
    reader.whitespace_split = True
    reader.commenters = "#"
    try:
        return list(reader)
    except ValueError:
        return line.replace('"', " ").replace("'", " ").split()


def _line(line: str, origin: str, number: int, depth: int = 0) -> Iterator[VariableSetting]:
    """Yield the settings of all commands of one line."""
    if not any(mark in line for mark in ("=", "setenv")):
        return
    for command in _commands(line):
        yield from _command(command, origin, number, depth)


def _commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of a line."""
    command: list[str] = []
    for word in [*_words(line), ";"]:
        if word in _OPERATORS or set(word) <= set(";&|()"):
            yield command
            command = []
        else:
            command.append(word)


def _command(words: list[str], origin: str, number: int, depth: int) -> Iterator[VariableSetting]:
    if not words:
        return
    first = words[0].rpartition("/")[2]
    writes = any(word.startswith((">", "tee")) for word in words)
    if first in _TEXT_COMMANDS and not (first in ("echo", "printf") and writes):
        return
    if first == "setenv" and len(words) >= 3:
        words = [first, f"{words[1]}={words[2]}"]
    only_pairs = all(_PAIR.fullmatch(word) for word in words)
    sets_for_all = only_pairs or first in _SETTING_COMMANDS
    exported = not only_pairs or first in _SETTING_COMMANDS
    for setting in _pairs(words, origin, number, exported=exported):
        yield replace(setting, command_line=None if sets_for_all else number)
    if depth < _MAX_DEPTH:
        for word in words:
            if (
                " " in word
                and "=" in word
                and not _EXPORT_OPTION.fullmatch(word)
                and not _is_pair(word)
            ):
                yield from _line(word, origin, number, depth + 1)


def _is_pair(word: str) -> bool:
    match = _PAIR.fullmatch(word)
    return match is not None and is_of_interest(match[1])


def _pairs(
    words: list[str], origin: str, number: int, *, exported: bool
) -> Iterator[VariableSetting]:
    for word in words:
        option = _EXPORT_OPTION.fullmatch(word)
        for part in option[1].split(",") if option else [word]:
            match = _PAIR.fullmatch(part)
            if match and is_of_interest(match[1]):
                value = None if re.search(r"[$`]", match[2]) else match[2]
                yield VariableSetting(
                    name=match[1], value=value, origin=origin, line=number, exported=exported
                )


def _is_script_variable(name: str, used: Collection[str], *, exported: bool) -> bool:
    """Return whether a name like NNODES is the script's own: not exported, or used in it."""
    row = variable_entries().get(name)
    is_generic = row is not None and row.status in (
        VariableStatus.NEVER_READ,
        VariableStatus.FRAMEWORK,
    )
    return (
        is_generic
        and not name.startswith(("NCCL_", "TORCH", "GLOO_"))
        and (not exported or name in used)
    )
