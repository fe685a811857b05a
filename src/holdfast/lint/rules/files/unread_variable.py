"""An environment variable that a program sets and nothing reads."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.causes.environment.variable_never_read import VARIABLE_NEVER_READ
from holdfast.core.findings import Finding, Level
from holdfast.core.variable_table import closest_name
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.edits import Edit
from holdfast.lint.rules.rule import Rule, RuleTier


def audit_finding(divergence: Divergence) -> Finding | None:
    """Return what ``holdfast env`` reports about a variable that is set, unless it is a note."""
    # not at the top: few programs need these imports, which take 40 ms
    from holdfast.host.variable_rules.context import AuditContext  # noqa: PLC0415
    from holdfast.host.variable_rules.unread import judge_unread  # noqa: PLC0415
    from holdfast.host.variable_sources import VariableSetting  # noqa: PLC0415

    setting = VariableSetting(
        name=divergence.text,
        value=divergence.detail or None,
        origin=divergence.location.file,
        line=divergence.location.line,
    )
    findings = judge_unread(setting, {}, AuditContext())
    return next((finding for finding in findings if finding.level is not Level.NOTE), None)


def _matches(divergence: Divergence) -> bool:
    finding = audit_finding(divergence)
    return finding is not None and finding.cause in (
        "variable-never-read",
        "variable-of-another-version",
    )


def _message(divergence: Divergence) -> str:
    finding = audit_finding(divergence)
    return finding.message if finding is not None else divergence.text


def _fix_spelling(divergence: Divergence, lines: Sequence[str]) -> Edit | None:
    """Return an edit that corrects a typing error, if the file has the wrong name only once."""
    name, at = divergence.text, divergence.location.line
    right = closest_name(name)
    if (
        not _is_typing_error(name, right)
        or at > len(lines)
        or sum(line.count(name) for line in lines) != 1
    ):
        return None
    was = lines[at - 1]
    return (
        Edit(at, was, was.replace(name, right)) if re.search(rf"""(["']){name}\1""", was) else None
    )


def _is_typing_error(name: str, right: str) -> bool:
    """Return True for two swapped letters, or a doubled or undoubled letter."""
    if len(name) == len(right):
        differing = [
            at
            for at, (left_letter, right_letter) in enumerate(zip(name, right, strict=True))
            if left_letter != right_letter
        ]
        swapped = "".join(name[at] for at in reversed(differing)) == "".join(
            right[at] for at in differing
        )
        return (
            len(differing) == 2
            and differing[1] == differing[0] + 1
            and swapped
            and "_" not in name[differing[0] : differing[1] + 1]
        )
    shorter, longer = sorted((name, right), key=len)
    return bool(right) and any(
        longer[at - 1] == letter != "_" and longer[:at] + longer[at + 1 :] == shorter
        for at, letter in enumerate(longer)
        if at
    )


RULE = Rule(
    name="unread-variable",
    cause=VARIABLE_NEVER_READ,
    tier=RuleTier.ADVICE,
    what_it_does=(
        "Finds variables of NCCL, gloo and torch that a program sets for itself or its children "
        "and that nothing reads: misspelled ones, and those that the libraries never had or have "
        "removed. The same table and rule as `holdfast env --scan`, which also checks scripts, "
        "images and values."
    ),
    known_misses="Names that a plugin may read, and names built at run time.",
    bad="""\
import os

os.environ["NCCL_BUFFER_SIZE"] = "8388608"  # found
dist.init_process_group("nccl")
""",
    good="""\
import os

os.environ["NCCL_BUFFSIZE"] = "8388608"
dist.init_process_group("nccl")
""",
    kinds=("set",),
    matches=_matches,
    message=_message,
    fix=_fix_spelling,
)
