"""Fills the placeholders in the commands of remedies, such as PID and SCRIPT."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from holdfast.core.findings import Finding, Remedy, Verdict

_LAUNCH = re.compile(r"\bholdfast run (?P<options>(?:[^|;&]* )?)SCRIPT\b")
#: Options that have no meaning, or another one, with --standalone.
_RENDEZVOUS = ("--nnodes", "--node-rank", "--rdzv", "--master-", "--standalone")
#: A fault injected on purpose is not part of the job.
_NEVER_REPEATED = ("--inject",)


def fill_remedy(remedy: Remedy, values: Mapping[str, str]) -> Remedy:
    """Replace whole words of the command that are keys of ``values``; empty values are unknown.

    Shell variables (``$MASTER_PORT``) are kept.
    """
    command = remedy.command
    for placeholder, value in values.items():
        if command is not None and value:
            escaped = value.replace("\\", r"\\")
            command = re.sub(rf"(?<![$\w]){placeholder}\b", escaped, command)
    return replace(remedy, command=command)


def fill_launch(remedy: Remedy, options: Sequence[str], script: Sequence[str]) -> Remedy:
    """Replace SCRIPT by the words of ``script``, which include its arguments.

    A command that begins with ``holdfast run`` also gets those launch ``options`` that it does not
    set itself.
    """
    if remedy.command is None or not script:
        return remedy

    def repeat_launch(match: re.Match[str]) -> str:
        own = shlex.split(match["options"])
        kept = (word for group in _groups(options) if not _is_set(group[0], own) for word in group)
        return shlex.join(("holdfast", "run", *kept, *own, *script))

    command = _LAUNCH.sub(repeat_launch, remedy.command)
    return fill_remedy(replace(remedy, command=command), {"SCRIPT": shlex.join(script)})


def fill_verdict(verdict: Verdict, options: Sequence[str], script: Sequence[str]) -> Verdict:
    """Fill in the launch command, as :func:`fill_launch` does, in all findings of a verdict."""
    fill = partial(_fill_finding, partial(fill_launch, options=options, script=script))
    return replace(
        verdict,
        root=None if verdict.root is None else fill(verdict.root),
        consequences=tuple(map(fill, verdict.consequences)),
        suspects=tuple(map(fill, verdict.suspects)),
    )


def _fill_finding(fill: Callable[[Remedy], Remedy], finding: Finding) -> Finding:
    return replace(finding, remedies=tuple(map(fill, finding.remedies)))


def _groups(options: Sequence[str]) -> Iterator[list[str]]:
    """Yield each option with its values; before the script, there are no other words."""
    group: list[str] = []
    for word in options:
        if word.startswith("-") and group:
            yield group
            group = []
        group.append(word)
    if group:
        yield group


def _is_set(option: str, own: Sequence[str]) -> bool:
    """Return whether ``option`` is superseded by one of the command's ``own`` options.

    torchrun accepts underscores and unambiguous beginnings of its options.
    """
    name = option.partition("=")[0].replace("_", "-")
    superseded = [word.partition("=")[0] for word in own if word.startswith("--")]
    if any(flag == name or (len(name) > 4 and flag.startswith(name)) for flag in superseded):
        return True
    excluded = _NEVER_REPEATED + (_RENDEZVOUS if "--standalone" in superseded else ())
    return name.startswith(excluded)
