"""Variables that shell scripts, Dockerfiles and files of NAME=value lines set.

The words of a line are taken apart by shlex, and NAME=value counts wherever a launcher takes it: after export, in
front of a command, after -x, -e and --env, in --export=ALL,A=1. Conditions are not followed: each line is taken to be
reached.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from msgspec.structs import replace

from holdfast.facts.launch_files import deepspeed
from holdfast.facts.variables import Given
from holdfast.variables import Status, concerns, table

_PAIR = re.compile(r"(?:-[xe]|-D)?([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_EXPORT_OPTION = re.compile(r"--(?:export|env|environment|envs|container-env)=(.*)", re.DOTALL)
#: What sets a variable for all commands that follow; before any other command it is for that one alone.
_SHELL_WIDE = frozenset({"export", "setenv", "declare", "typeset", "readonly", "local", "echo", "printf"})
#: Commands whose words are text and not settings.
_TEXT = frozenset({"echo", "printf", "grep", "sed", "awk", "unset", "test", "[", "[[", "if", "elif", "while", "case"})
_OPERATORS = frozenset({";", "&&", "||", "|", "&", "(", ")", ";;", "\n", "{", "}", "then", "do", "else"})
_USED = re.compile(r"\$\{?(\w+)")
_SLURM = re.compile(r"^\s*#\s*SBATCH\s+(.*)")
_MOST_DEPTH = 3
#: Variables that one file sets.
MOST_GIVEN = 2000


class Unreadable(ValueError):
    """The file cannot be read as what its name says."""


def of_interest(name: str) -> bool:
    """True for a name that somebody in the job may read, or that is nearly one."""
    return concerns(name)


def read(text: str, origin: str) -> Iterator[Given]:
    """What a script sets, line by line; a name that it uses itself and nobody else reads is its own.

    Raises Unreadable where it sets more than MOST_GIVEN.
    """
    found = list(islice(_script(text, origin), MOST_GIVEN + 1))
    if len(found) > MOST_GIVEN:
        raise Unreadable(f"more than {MOST_GIVEN:,} variables are set in it, as in no launch script")
    exported = {each.name for each in found if each.handed_on}
    exported |= set(re.findall(r"^\s*(?:export|declare -x)\s+([A-Z][A-Z0-9_]*)\s*(?:#.*)?$", text, re.MULTILINE))
    senders = list(_senders(text)) if "deepspeed" in text or "ds " in text else []
    used = set(_USED.findall(text))
    everything = re.search(r"^\s*set\s+(-\w*a|-o allexport)\b", text, re.MULTILINE)
    for each in found:
        handed_on = each.handed_on or each.name in exported or bool(everything)
        if not _own(each.name, used, handed_on=handed_on) and (handed_on or each.name not in used):
            yield replace(each, handed_on=handed_on, sender=_sender(each, senders) if handed_on else None)


def _senders(text: str) -> Iterator[int]:
    """The lines on which DeepSpeed's launcher starts ranks of several hosts."""
    for number, line in _logical(text):
        if any(deepspeed.on_several_hosts(command) for command in _commands(line)):
            yield number


def _sender(given: Given, senders: Sequence[int]) -> int | None:
    """The first of these lines that comes with the variable, or after it."""
    at = bisect_left(senders, given.line or 0)
    line = senders[at] if at < len(senders) else None
    return line if given.of_command in (None, line) else None


def read_pairs(text: str, origin: str) -> Iterator[Given]:
    """Lines of NAME=value, as in .env, .deepspeed_env and nccl.conf."""
    for number, line in enumerate(text.splitlines(), 1):
        name, sign, value = line.strip().removeprefix("export ").partition("=")
        if sign and not name.startswith("#") and of_interest(name.strip()):
            yield Given(name=name.strip(), value=value.strip().strip("'\""), origin=origin, line=number)


def read_dockerfile(text: str, origin: str) -> Iterator[Given]:
    """ENV keeps what it sets; what RUN exports is gone with its line; what RUN writes into files stays."""
    for number, line in _logical(text):
        instruction, _, rest = line.strip().partition(" ")
        match instruction.upper():
            case "ENV":
                first = rest.split(None, 1)
                if first and "=" not in first[0] and len(first) == 2:
                    rest = f"{first[0]}={shlex.quote(first[1])}"
                yield from _pairs(_words(rest), origin, number, handed_on=True)
            case "RUN":
                commands = [command for command in re.split(r"&&|;", rest) if command.strip()]
                exported = all(command.split()[0] == "export" for command in commands)
                for command in commands:
                    if exported or command.split()[0] in ("echo", "printf"):
                        for given in _line(command, origin, number):
                            yield replace(given, handed_on=not exported)
            case "CMD" | "ENTRYPOINT":
                yield from _line(rest, origin, number)


def _script(text: str, origin: str) -> Iterator[Given]:
    for number, line in _logical(text):
        if slurm := _SLURM.match(line):
            yield from _pairs(_words(slurm[1]), origin, number, handed_on=True)
        elif not line.lstrip().startswith("#"):
            yield from _line(line, origin, number)


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """Lines with those that a backslash continues, and with the number of the first; a quote may span lines."""
    begun = 0
    pieces: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        begun = begun or number
        if line.lstrip().startswith("#") and pieces:
            continue  # a comment between continued lines, as Dockerfiles have them
        if line.endswith("\\") and not line.endswith("\\\\"):
            pieces.append(line[:-1])
            continue
        yield begun, " ".join([*pieces, line])
        begun, pieces = 0, []
    if pieces:
        yield begun, " ".join(pieces)


def _words(line: str) -> list[str]:
    """The words as the shell sees them; where quotes do not end, what blanks divide."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=";&|()")
    reader.whitespace_split = True
    reader.commenters = "#"
    try:
        return list(reader)
    except ValueError:
        return line.replace('"', " ").replace("'", " ").split()


def _line(line: str, origin: str, number: int, depth: int = 0) -> Iterator[Given]:
    """The commands of one line, each by itself."""
    if not any(mark in line for mark in ("=", "setenv")):
        return
    for command in _commands(line):
        yield from _command(command, origin, number, depth)


def _commands(line: str) -> Iterator[list[str]]:
    """The words of each command of a line."""
    command: list[str] = []
    for word in [*_words(line), ";"]:
        if word in _OPERATORS or set(word) <= set(";&|()"):
            yield command
            command = []
        else:
            command.append(word)


def _command(words: list[str], origin: str, number: int, depth: int) -> Iterator[Given]:
    if not words:
        return
    first = words[0].rpartition("/")[2]
    writes = any(word.startswith((">", "tee")) for word in words)
    if first in _TEXT and not (first in ("echo", "printf") and writes):
        return
    if first == "setenv" and len(words) >= 3:
        words = [first, f"{words[1]}={words[2]}"]
    alone = all(_PAIR.fullmatch(word) for word in words)
    own = not alone and first not in _SHELL_WIDE
    for given in _pairs(words, origin, number, handed_on=not alone or first in _SHELL_WIDE):
        yield replace(given, of_command=number if own else None)
    if depth < _MOST_DEPTH:
        for word in words:
            if " " in word and "=" in word and not _EXPORT_OPTION.fullmatch(word) and not _is_pair(word):
                yield from _line(word, origin, number, depth + 1)


def _is_pair(word: str) -> bool:
    found = _PAIR.fullmatch(word)
    return found is not None and of_interest(found[1])


def _pairs(words: list[str], origin: str, number: int, *, handed_on: bool) -> Iterator[Given]:
    for word in words:
        option = _EXPORT_OPTION.fullmatch(word)
        for part in option[1].split(",") if option else [word]:
            found = _PAIR.fullmatch(part)
            if found and of_interest(found[1]):
                value = None if re.search(r"[$`]", found[2]) else found[2]
                yield Given(name=found[1], value=value, origin=origin, line=number, handed_on=handed_on)


def _own(name: str, used: Collection[str], *, handed_on: bool) -> bool:
    """Names like NNODES are what scripts call their own; they count only where they are exported and not used."""
    row = table().get(name)
    ours = row is not None and row.status in (Status.NEVER_READ, Status.FRAMEWORK)
    return ours and not name.startswith(("NCCL_", "TORCH", "GLOO_")) and (not handed_on or name in used)
