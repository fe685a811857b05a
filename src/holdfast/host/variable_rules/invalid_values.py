"""Judges values that the reader of the variable rejects, ignores or misparses.

Each reader parses differently.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import partial

from holdfast.causes.environment.variable_value_unusable import VARIABLE_VALUE_UNUSABLE
from holdfast.causes.network.network_interface_wrong import NETWORK_INTERFACE_WRONG
from holdfast.core.findings import Finding, Level
from holdfast.core.variable_table import ValueForm, VariableEntry, parse_release, variable_entries
from holdfast.host.variable_rules.context import AuditContext, variable_finding
from holdfast.host.variable_sources import VariableSetting, truncate

_NUMBER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|\d+)")
_OCTAL = re.compile(r"[+-]?0\d+")
_YES, _NO = (
    frozenset({"true", "yes", "on", "y", "t", "enable", "enabled"}),
    frozenset({"false", "no", "off", "n", "f"}),
)
_SUFFIXES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_finding = partial(variable_finding, VARIABLE_VALUE_UNUSABLE)
#: The first NCCL release in which an unknown token of a list makes communicator setup fail.
_STRICT_TOKENS = (2, 24)


def judge(setting: VariableSetting, context: AuditContext) -> Iterator[Finding]:
    """Report a value that is misparsed or ignored, or that ends the program."""
    row = variable_entries().get(setting.name)
    if row is None or not setting.value:
        return
    text = setting.value.strip()
    match row.form:
        case ValueForm.PREFIX_NUMBER:
            yield from _judge_nccl_number(setting, row, text)
        case ValueForm.NUMBER:
            yield from _judge_number(setting, row, text)
        case ValueForm.WORDS | ValueForm.ZERO_ONE | ValueForm.CHOICE | ValueForm.EXACT:
            yield from _judge_choice(setting, row, text)
        case ValueForm.LIST:
            yield from _judge_list(setting, row, text, context)
        case _:
            yield from _judge_special(setting, row, text, context)


def _judge_nccl_number(
    setting: VariableSetting, row: VariableEntry, text: str
) -> Iterator[Finding]:
    """NCCL parses numbers by strtoll with base 0, and ignores trailing characters."""
    match = _NUMBER.match(text)
    if match is None:
        intended = "1" if text.casefold() in _YES else "0" if text.casefold() in _NO else ""
        if intended == "0":
            yield _finding(
                f"{setting} is parsed as 0, because NCCL parses only numbers; use 0",
                setting,
                level=Level.NOTE,
                command=f"export {setting.name}=0",
            )
            return
        command = f"export {setting.name}={intended}" if intended else ""
        yield _finding(
            f"{setting} is parsed as 0, because NCCL parses only numbers"
            + (f": it does the opposite; use {setting.name}=1" if intended else ""),
            setting,
            level=Level.ERROR if intended else Level.WARNING,
            command=command,
        )
        return
    rest = text[match.end() :]
    factor = _SUFFIXES.get(rest[:1].casefold(), 0)
    if rest:
        command = (
            f"export {setting.name}={int(match[0], 0) * factor}"
            if factor and not _OCTAL.fullmatch(match[0])
            else ""
        )
        yield _finding(
            f"{setting} is parsed as {match[0]}: NCCL silently stops at {rest[:12]!r}",
            setting,
            command=command,
        )
    elif _OCTAL.fullmatch(text) and text.strip("0+-"):
        yield _finding(
            f"{setting} begins with 0, so that NCCL parses it as an octal number",
            setting,
            command=f"export {setting.name}={text.lstrip('0')}",
        )
    else:
        yield from _judge_range(setting, row, int(text, 0) if not _OCTAL.fullmatch(text) else 0)


def _judge_number(setting: VariableSetting, row: VariableEntry, text: str) -> Iterator[Finding]:
    if not re.fullmatch(r"[+-]?\d+(?:\.\d+)?", text):
        if re.match(r"[+-]?\d", text):
            yield _finding(
                f"{setting} is not a number; the reader uses its leading digits, or rejects it",
                setting,
            )
        else:
            yield _finding(
                f"{setting} is not a number; {row.owner} rejects it, and the program ends",
                setting,
                level=Level.ERROR,
            )
    else:
        yield from _judge_range(setting, row, float(text))


def _judge_range(setting: VariableSetting, row: VariableEntry, value: float) -> Iterator[Finding]:
    if str(setting.value) == row.default or (
        row.default is not None and row.default.startswith("-") and value < 0
    ):
        return
    allowed_text = ""
    if row.choices and all(re.fullmatch(r"-?\d+", choice) for choice in row.choices):
        allowed = {int(choice) for choice in row.choices} | {int(row.default or 0)}
        if value not in allowed and not (row.kind == "bool" and len(allowed) == 2):
            allowed_text = f"one of {', '.join(row.choices)}"
        elif value not in allowed and row.note:
            allowed_text = "0 or 1, of which only 1 has an effect"
    if row.minimum is not None and value < row.minimum:
        allowed_text = f"at least {row.minimum}"
    if row.maximum is not None and value > row.maximum:
        allowed_text = f"at most {row.maximum}"
    if row.multiple_of and value % row.multiple_of:
        allowed_text = f"a multiple of {row.multiple_of}"
    if row.power_of_two and value > 0 and int(value) & (int(value) - 1):
        allowed_text = "a power of two"
    if allowed_text:
        unit = f" ({row.unit})" if row.unit else ""
        yield _finding(
            f"{setting} is invalid; allowed: {allowed_text}{unit}. {row.effect}", setting
        )


def _judge_choice(setting: VariableSetting, row: VariableEntry, text: str) -> Iterator[Finding]:
    choices = row.choices
    is_valid = text in choices or (
        row.form is not ValueForm.EXACT and text.casefold() in map(str.casefold, choices)
    )
    if is_valid or not choices or (row.form is ValueForm.EXACT and text.isdigit()):
        return  # numbers are old names of the distances; larger ones mean the last
    valid = ", ".join(choices)
    if row.form is ValueForm.EXACT and text.upper() in choices:
        yield _finding(
            f"{setting} is silently ignored: the names are case-sensitive (uppercase)",
            setting,
            command=f"export {setting.name}={text.upper()}",
        )
    elif row.form is ValueForm.WORDS:
        yield _finding(
            f"{setting} is not one of {valid}, and torch raises an error",
            setting,
            level=Level.ERROR,
        )
    elif setting.name == "TORCH_DISTRIBUTED_DEBUG":
        yield _finding(
            f"{setting} is not one of {valid}, so that importing torch.distributed raises an error",
            setting,
            level=Level.ERROR,
        )
    elif setting.name == "GLOO_DEVICE_TRANSPORT":
        yield _finding(
            f"{setting} is not one of {valid}: no gloo process group can be created",
            setting,
            level=Level.ERROR,
        )
    else:
        yield _finding(f"{setting} is not one of {valid}; it is ignored or misparsed", setting)


def _judge_list(
    setting: VariableSetting, row: VariableEntry, text: str, context: AuditContext
) -> Iterator[Finding]:
    known = {choice.casefold() for choice in row.choices}
    parts = (
        [part.rpartition(":")[2] for part in text.split(";")]
        if ";" in text or ":" in text
        else [text]
    )
    tokens = [token for part in parts for token in part.lstrip("^").replace("|", ",").split(",")]
    unknown = [token for token in tokens if token.strip().casefold() not in known]
    if not unknown:
        return
    problem = (
        f"{setting} contains {truncate(unknown[0])!r}, which is not one of {', '.join(row.choices)}"
    )
    release = parse_release(context.nccl)
    if setting.name in ("NCCL_ALGO", "NCCL_PROTO") and (not release or release >= _STRICT_TOKENS):
        yield _finding(
            f"{problem}: since NCCL 2.24 communicator setup fails then", setting, level=Level.ERROR
        )
    elif setting.name == "NCCL_DEBUG_SUBSYS" and release >= (2, 30):
        yield _finding(f"{problem}: NCCL 2.30 then ignores the whole list", setting)
    else:
        yield _finding(f"{problem}; it is ignored", setting)


def _judge_special(
    setting: VariableSetting, row: VariableEntry, text: str, context: AuditContext
) -> Iterator[Finding]:
    """Judge values with a special grammar."""
    if setting.name == "GLOO_SOCKET_IFNAME" and text[:1] in "^=":
        plain = shlex.quote(text.lstrip("^="))
        yield _finding(
            f"{setting} uses NCCL's {text[0]!r}; gloo accepts only interface "
            f"names, and cannot create a group",
            setting,
            level=Level.ERROR,
            command=f"export GLOO_SOCKET_IFNAME={plain}" if text[0] == "=" else "",
        )
    elif setting.name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        yield from _judge_interface(setting, text, context)
    elif setting.name == "PET_NNODES" and not re.fullmatch(r"\d+(:\d+)?", text):
        yield _finding(
            f"{setting} is not a number of nodes, or a range MIN:MAX", setting, level=Level.ERROR
        )
    elif row.keys and (unknown := [key for key in _allocator_keys(text) if key not in row.keys]):
        yield _finding(
            f"{setting} contains {truncate(unknown[0])!r}, which is not an "
            "allocator setting: torch raises an error at the first use of CUDA",
            setting,
            level=Level.ERROR,
            confidence=0.7,
        )


def _allocator_keys(text: str) -> list[str]:
    return [
        part.partition(":")[0].strip()
        for part in re.sub(r"\[[^]]*\]", "", text).split(",")
        if part.strip()
    ]


def _judge_interface(
    setting: VariableSetting, text: str, context: AuditContext
) -> Iterator[Finding]:
    """Report a variable that matches no interface of this host, if its interfaces are known."""
    if text.startswith("^") or context.interfaces is None:
        return
    exact = text.startswith("=") or setting.name != "NCCL_SOCKET_IFNAME"
    wanted = [name.partition(":")[0] for name in text.lstrip("=").split(",") if name]
    present = context.interfaces
    if any(
        name in present if exact else any(other.startswith(name) for other in present)
        for name in wanted
    ):
        return
    library = "gloo" if setting.name.startswith("GLOO") else "NCCL"
    yield variable_finding(
        NETWORK_INTERFACE_WRONG,
        f"{setting} matches no interface of this host "
        f"({', '.join(present) or 'none'}): {library} finds no address and cannot start",
        setting,
        level=Level.ERROR,
    )
