"""Rules of the kernel's packet filter, as ``nft -j list ruleset`` and ``iptables-save`` print them, in one form.

Only what decides over a new TCP connection is understood; a rule with anything else in it is not ``sure``: it may match
or not. Formats: libnftables-json(5), iptables-save(8), iptables-extensions(8).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.findings import Unknown

_VERDICTS = ("accept", "drop", "reject", "return", "jump", "goto")
_WITHOUT_EFFECT = frozenset({"counter", "log", "comment", "mangle"})
#: Characters of a rule that are kept, to be shown.
_LONGEST = 120
Ports = tuple[tuple[int, int], ...]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule. What is empty matches all. ``verdict`` is empty where it decides nothing; ``target`` is a chain's name.

    ``ports`` are destination ports from - to, ``sources`` and ``destinations`` networks. ``new``: it can match the
    first packet of a connection. ``sure``: there is nothing in it that is not understood.
    """

    text: str
    verdict: str = ""
    target: str = ""
    protocols: tuple[str, ...] = ()
    ports: Ports = ()
    sources: tuple[str, ...] = ()
    destinations: tuple[str, ...] = ()
    inward: tuple[str, ...] = ()
    outward: tuple[str, ...] = ()
    new: bool = True
    sure: bool = True


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """Rules in their order. ``hook`` is ``input``, ``output`` … where packets enter it, and empty else."""

    family: str
    table: str
    name: str
    hook: str = ""
    priority: int = 0
    policy: str = "accept"
    rules: tuple[Rule, ...] = ()


def from_nft(answer: bytes) -> tuple[Chain, ...] | Unknown:
    """The chains of all tables that filter, by the JSON of nft."""
    try:
        items = msgspec.json.decode(answer)["nftables"]
        chains = [item["chain"] for item in items if "chain" in item]
        rules = [item["rule"] for item in items if "rule" in item]
        return tuple(_nft_chain(chain, rules) for chain in chains)
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        return Unknown(f"what nft says cannot be read: {error!r}"[:200])


def _nft_chain(chain: dict[str, Any], rules: Iterable[dict[str, Any]]) -> Chain:
    place = (chain["family"], chain["table"], chain["name"])
    own = [rule for rule in rules if (rule["family"], rule["table"], rule["chain"]) == place]
    return Chain(
        family=chain["family"],
        table=chain["table"],
        name=chain["name"],
        hook=chain.get("hook", "") if chain.get("type", "filter") == "filter" else "",
        priority=chain.get("prio", 0),
        policy=chain.get("policy", "accept"),
        rules=tuple(_nft_rule(rule["expr"]) for rule in own),
    )


def _nft_rule(expressions: Sequence[dict[str, Any]]) -> Rule:
    seen: dict[str, Any] = {"text": " ".join(_words(each) for each in expressions)[:_LONGEST]}
    for expression in expressions:
        ((kind, body),) = expression.items()
        if kind in _VERDICTS:
            seen["verdict"] = kind
            seen["target"] = body["target"] if kind in {"jump", "goto"} else ""
        elif kind == "match":
            _nft_match(body, seen)
        elif kind == "vmap":
            _nft_map(body, seen)
        elif kind not in _WITHOUT_EFFECT:
            seen["sure"] = False
    return Rule(**seen)


def _nft_match(body: dict[str, Any], seen: dict[str, Any]) -> None:
    left, values = body["left"], list(_values(body["right"]))
    ((kind, about),) = left.items() if isinstance(left, dict) else (("", {}),)
    key = about.get("key", "") if isinstance(about, dict) else ""
    field = (about.get("protocol"), about.get("field")) if kind == "payload" else (kind, key)
    name = {
        ("tcp", "dport"): "ports", ("th", "dport"): "ports", ("ip", "saddr"): "sources", ("ip6", "saddr"): "sources",
        ("ip", "daddr"): "destinations", ("ip6", "daddr"): "destinations", ("meta", "iifname"): "inward",
        ("meta", "iif"): "inward", ("meta", "oifname"): "outward", ("meta", "oif"): "outward",
        ("meta", "l4proto"): "protocols", ("ip", "protocol"): "protocols",
    }.get(field)  # fmt: skip
    if field == ("ct", "state"):
        seen["new"] = ("new" in values) is not (body["op"] == "!=")
    elif field[0] == "udp":
        seen["protocols"] = ("udp",)
    elif name == "ports" and body["op"] == "==" and all(_is_span(value) for value in values):
        seen["ports"], seen["protocols"] = tuple(_span(value) for value in values), ("tcp",)
    elif name not in {None, "ports"} and body["op"] in {"==", "!="}:
        mark = "!" if body["op"] == "!=" else ""
        seen[str(name)] = tuple(mark + str(value) for value in values)
    else:
        seen["sure"] = False


def _nft_map(body: dict[str, Any], seen: dict[str, Any]) -> None:
    """``ct state vmap { established : accept, … }``: what a new connection gets."""
    if body["key"] != {"ct": {"key": "state"}} or not isinstance(body["data"], dict):
        seen["sure"] = False
        return
    verdicts = {value: verdict for key, verdict in body["data"]["set"] for value in _values(key)}
    verdict = verdicts.get("new")
    seen["new"] = verdict is not None
    if verdict:
        ((seen["verdict"], about),) = verdict.items()
        seen["target"] = about["target"] if about else ""


def _words(expression: dict[str, Any]) -> str:
    """The expression much as nft writes it for people: ``tcp dport 29500``, ``drop``; parts that are rare by name."""
    ((kind, body),) = expression.items()
    if kind in {"jump", "goto"}:
        return f"{kind} {body['target']}"
    if kind != "match":
        return str(kind)
    left = body["left"]
    ((name, about),) = left.items() if isinstance(left, dict) else ((str(left), {}),)
    about = about if isinstance(about, dict) else {}
    what = " ".join(str(about[key]) for key in ("protocol", "field", "key") if key in about)
    values = [f"{value[0]}-{value[1]}" if isinstance(value, tuple) else str(value) for value in _values(body["right"])]
    sign = "" if body["op"] in {"==", "in"} else f"{body['op']} "
    return f"{'ct ' if name == 'ct' else ''}{what or name} {sign}{','.join(values)}"


def _values(right: Any) -> Iterator[Any]:
    """One value or a set of them; a prefix as its text, a range as from - to."""
    if isinstance(right, list) or (isinstance(right, dict) and "set" in right):
        for each in right if isinstance(right, list) else right["set"]:
            yield from _values(each)
    elif isinstance(right, dict) and "prefix" in right:
        yield f"{right['prefix']['addr']}/{right['prefix']['len']}"
    elif isinstance(right, dict) and "range" in right:
        yield tuple(right["range"])
    else:
        yield right


def _is_span(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, tuple) and all(isinstance(end, int) for end in value))


def _span(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def from_iptables(answer: bytes, family: str) -> tuple[Chain, ...] | Unknown:
    """The chains of the table ``filter``, by iptables-save (``family`` ip) or ip6tables-save (ip6)."""
    policies: dict[str, str] = {}
    rules: dict[str, list[Rule]] = {}
    table = ""
    try:
        for line in answer.decode(errors="replace").splitlines():
            if line.startswith("*"):
                table = line[1:].strip()
            elif table == "filter" and line.startswith(":"):
                name, policy = line[1:].split()[:2]
                policies[name] = policy
            elif table == "filter" and line.startswith("-A "):
                words = shlex.split(line)
                rules.setdefault(words[1], []).append(_iptables_rule(words[2:], line))
    except ValueError as error:
        return Unknown(f"what iptables-save says cannot be read: {error}")
    return tuple(
        Chain(
            family=family, table="filter", name=name, hook=name.lower() if policy != "-" else "",
            policy="drop" if policy == "DROP" else "accept", rules=tuple(rules.get(name, ())),
        )
        for name, policy in policies.items()
    )  # fmt: skip


def _iptables_rule(words: Sequence[str], line: str) -> Rule:
    seen: dict[str, Any] = {"text": line[:_LONGEST]}
    fields = {"-s": "sources", "-d": "destinations", "-i": "inward", "-o": "outward", "-p": "protocols"}
    place, mark = 0, ""
    while place < len(words):
        word, value = words[place], words[place + 1] if place + 1 < len(words) else ""
        place += 2
        if word == "!":
            mark, place = "!", place - 1
            continue
        if word in fields:
            seen[fields[word]] = (mark + value.replace("+", "*"),)
        elif word in {"--dport", "--dports"} and not mark:
            ends = [part.split(":") for part in value.split(",")]
            seen["ports"] = tuple((int(end[0]), int(end[-1])) for end in ends)
        elif word in {"--state", "--ctstate"}:
            seen["new"] = ("NEW" in value.split(",")) is not bool(mark)
        elif word in {"-j", "-g"}:
            _iptables_target(value, word == "-g", seen)
            break  # what follows are the target's own options
        elif word not in {"-m", "--comment"}:
            seen["sure"], place = False, place - value.startswith("-")  # an option of a module, with or without a value
        mark = ""
    return Rule(**seen)


def _iptables_target(name: str, goes: bool, seen: dict[str, Any]) -> None:  # noqa: FBT001
    if name in {"ACCEPT", "DROP", "REJECT", "RETURN"}:
        seen["verdict"] = name.lower()
    elif name not in {"LOG", "NFLOG", "TRACE", "MARK", "CONNMARK"}:
        seen["verdict"], seen["target"] = "goto" if goes else "jump", name
