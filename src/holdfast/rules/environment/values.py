"""Is the value one that whoever reads it understands as it is meant? Each reader has its own way with text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from holdfast.facts.variables import Given
from holdfast.findings import Finding, Level
from holdfast.rules.environment.scene import Scene, claim, cut, shown
from holdfast.variables import Form, Variable, release, table

_NUMBER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|\d+)")
_OCTAL = re.compile(r"[+-]?0\d+")
_YES, _NO = frozenset({"true", "yes", "on", "y", "t", "enable", "enabled"}), frozenset({"false", "no", "off", "n", "f"})
_SUFFIXES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_CAUSE = "variable-value-unusable"
#: The first NCCL in which a token of these lists that is not known makes the set-up of a communicator fail.
_STRICT_TOKENS = (2, 24)


def judge(given: Given, scene: Scene) -> Iterator[Finding]:
    """Findings where the text is read as something else than it looks, is ignored, or ends the program."""
    row = table().get(given.name)
    if row is None or not given.value:
        return
    text = given.value.strip()
    match row.form:
        case Form.PREFIX_NUMBER:
            yield from _prefix_number(given, row, text)
        case Form.NUMBER:
            yield from _number(given, row, text)
        case Form.WORDS | Form.ZERO_ONE | Form.CHOICE | Form.EXACT:
            yield from _choice(given, row, text)
        case Form.LIST:
            yield from _list(given, row, text, scene)
        case _:
            yield from _special(given, row, text, scene)


def _prefix_number(given: Given, row: Variable, text: str) -> Iterator[Finding]:
    """NCCL's numbers: strtoll with base 0, and no look at what follows."""
    found = _NUMBER.match(text)
    if found is None:
        meant = "1" if text.casefold() in _YES else "0" if text.casefold() in _NO else ""
        if meant == "0":
            yield claim(
                _CAUSE,
                f"{shown(given)} is read as 0, as NCCL reads numbers alone; say 0",
                given,
                level=Level.NOTE,
                command=f"export {given.name}=0",
            )
            return
        right = f"export {given.name}={meant}" if meant else ""
        yield claim(
            _CAUSE,
            f"{shown(given)} is read as 0, as NCCL reads numbers and not words"
            + (f", so that it does the opposite; say {given.name}=1" if meant else ""),
            given,
            level=Level.ERROR if meant else Level.WARNING,
            command=right,
        )
        return
    rest = text[found.end() :]
    factor = _SUFFIXES.get(rest[:1].casefold(), 0)
    if rest:
        right = f"export {given.name}={int(found[0], 0) * factor}" if factor and not _OCTAL.fullmatch(found[0]) else ""
        yield claim(
            _CAUSE,
            f"{shown(given)} is read as {found[0]}: NCCL stops at {rest[:12]!r} and says nothing",
            given,
            command=right,
        )
    elif _OCTAL.fullmatch(text) and text.strip("0+-"):
        yield claim(
            _CAUSE,
            f"{shown(given)} begins with 0, so that NCCL reads it as an octal number",
            given,
            command=f"export {given.name}={text.lstrip('0')}",
        )
    else:
        yield from _range(given, row, int(text, 0) if not _OCTAL.fullmatch(text) else 0)


def _number(given: Given, row: Variable, text: str) -> Iterator[Finding]:
    if not re.fullmatch(r"[+-]?\d+(?:\.\d+)?", text):
        if re.match(r"[+-]?\d", text):
            yield claim(
                _CAUSE, f"{shown(given)} is not a number, and is read as the digits it begins with, or refused", given
            )
        else:
            yield claim(
                _CAUSE,
                f"{shown(given)} is not a number; {row.owner} refuses other text, and the program ends",
                given,
                level=Level.ERROR,
            )
    else:
        yield from _range(given, row, float(text))


def _range(given: Given, row: Variable, value: float) -> Iterator[Finding]:
    if str(given.value) == row.default or (row.default is not None and row.default.startswith("-") and value < 0):
        return
    wanted = ""
    if row.choices and all(re.fullmatch(r"-?\d+", choice) for choice in row.choices):
        allowed = {int(choice) for choice in row.choices} | {int(row.default or 0)}
        if value not in allowed and not (row.kind == "bool" and len(allowed) == 2):
            wanted = f"one of {', '.join(row.choices)}"
        elif value not in allowed and row.note:
            wanted = "0 or 1, and acts on 1 alone"
    if row.minimum is not None and value < row.minimum:
        wanted = f"at least {row.minimum}"
    if row.maximum is not None and value > row.maximum:
        wanted = f"at most {row.maximum}"
    if row.multiple_of and value % row.multiple_of:
        wanted = f"a multiple of {row.multiple_of}"
    if row.power_of_two and value > 0 and int(value) & (int(value) - 1):
        wanted = "a power of two"
    if wanted:
        unit = f" ({row.unit})" if row.unit else ""
        yield claim(_CAUSE, f"{shown(given)} is outside of what it can be, {wanted}{unit}: {row.effect}", given)


def _choice(given: Given, row: Variable, text: str) -> Iterator[Finding]:
    choices = row.choices
    same = text in choices or (row.form is not Form.EXACT and text.casefold() in map(str.casefold, choices))
    if same or not choices or (row.form is Form.EXACT and text.isdigit()):
        return  # numbers are old names of the distances; those above the last stand for it
    listed = ", ".join(choices)
    if row.form is Form.EXACT and text.upper() in choices:
        yield claim(
            _CAUSE,
            f"{shown(given)} is ignored without a word: the names are read in capitals alone",
            given,
            command=f"export {given.name}={text.upper()}",
        )
    elif row.form is Form.WORDS:
        yield claim(
            _CAUSE, f"{shown(given)} is not one of {listed}, and torch raises an error", given, level=Level.ERROR
        )
    elif given.name == "TORCH_DISTRIBUTED_DEBUG":
        yield claim(
            _CAUSE,
            f"{shown(given)} is not one of {listed}, so that importing torch.distributed raises an error",
            given,
            level=Level.ERROR,
        )
    elif given.name == "GLOO_DEVICE_TRANSPORT":
        yield claim(
            _CAUSE, f"{shown(given)} is not one of {listed}, and no gloo group can be made", given, level=Level.ERROR
        )
    else:
        yield claim(_CAUSE, f"{shown(given)} is not one of {listed}, and is ignored or taken for something else", given)


def _list(given: Given, row: Variable, text: str, scene: Scene) -> Iterator[Finding]:
    known = {choice.casefold() for choice in row.choices}
    parts = [part.rpartition(":")[2] for part in text.split(";")] if ";" in text or ":" in text else [text]
    tokens = [token for part in parts for token in part.lstrip("^").replace("|", ",").split(",")]
    strange = [token for token in tokens if token.strip().casefold() not in known]
    if not strange:
        return
    listed = ", ".join(row.choices)
    here = release(scene.nccl)
    if given.name in ("NCCL_ALGO", "NCCL_PROTO") and (not here or here >= _STRICT_TOKENS):
        yield claim(
            _CAUSE,
            f"{shown(given)} names {cut(strange[0])!r}, which is not one of {listed}: since NCCL 2.24 no "
            "communicator can be made then",
            given,
            level=Level.ERROR,
        )
    elif given.name == "NCCL_DEBUG_SUBSYS" and here >= (2, 30):
        yield claim(
            _CAUSE,
            f"{shown(given)} names {cut(strange[0])!r}, which is not one of {listed}: NCCL 2.30 throws the "
            "whole list away then",
            given,
        )
    else:
        yield claim(
            _CAUSE, f"{shown(given)} names {cut(strange[0])!r}, which is not one of {listed}, and is not heeded", given
        )


def _special(given: Given, row: Variable, text: str, scene: Scene) -> Iterator[Finding]:
    """Texts with a grammar of their own."""
    if given.name == "GLOO_SOCKET_IFNAME" and text[:1] in "^=":
        plain = shlex.quote(text.lstrip("^="))
        yield claim(
            _CAUSE,
            f"{shown(given)} has NCCL's {text[0]!r}; gloo takes names of interfaces alone, and fails to make a group",
            given,
            level=Level.ERROR,
            command=f"export GLOO_SOCKET_IFNAME={plain}" if text[0] == "=" else "",
        )
    elif given.name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        yield from _interface(given, text, scene)
    elif given.name == "PET_NNODES" and not re.fullmatch(r"\d+(:\d+)?", text):
        yield claim(_CAUSE, f"{shown(given)} is no number of nodes, nor two as MIN:MAX", given, level=Level.ERROR)
    elif row.keys and (strange := [part for part in _keys(text) if part not in row.keys]):
        yield claim(
            _CAUSE,
            f"{shown(given)} has the setting {cut(strange[0])!r}, which the allocator does not know: torch "
            "raises an error at the first use of CUDA",
            given,
            level=Level.ERROR,
            confidence=0.7,
        )


def _keys(text: str) -> list[str]:
    return [part.partition(":")[0].strip() for part in re.sub(r"\[[^]]*\]", "", text).split(",") if part.strip()]


def _interface(given: Given, text: str, scene: Scene) -> Iterator[Finding]:
    """An interface that is not on this host, where somebody looked."""
    if text.startswith("^") or scene.interfaces is None:
        return
    exact = text.startswith("=") or given.name != "NCCL_SOCKET_IFNAME"
    wanted = [name.partition(":")[0] for name in text.lstrip("=").split(",") if name]
    present = scene.interfaces
    if any(name in present if exact else any(other.startswith(name) for other in present) for name in wanted):
        return
    who = "gloo" if given.name.startswith("GLOO") else "NCCL"
    yield claim(
        "network-interface-wrong",
        f"{shown(given)} names no interface of this host, which has "
        f"{', '.join(present) or 'none'}; {who} finds no address then, and cannot start",
        given,
        level=Level.ERROR,
    )
