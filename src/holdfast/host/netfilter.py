"""Parses the output of ``nft -j list ruleset`` and ``iptables-save`` into one form.

Only expressions that affect a new TCP connection are parsed; a rule with any other expression is
not ``certain``: it may match or not. Formats: libnftables-json(5), iptables-save(8),
iptables-extensions(8).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.core.findings import Unknown

_VERDICTS = ("accept", "drop", "reject", "return", "jump", "goto")
_NO_EFFECT = frozenset({"counter", "log", "comment", "mangle"})
#: Maximum length of a rule's text, which messages quote.
_MAX_TEXT = 120
PortRanges = tuple[tuple[int, int], ...]


class FirewallRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule. An empty condition matches all. ``verdict`` is empty if it decides nothing.

    ``target`` names a chain. ``ports`` are ranges of destination ports; ``sources`` and
    ``destinations`` networks; ``in_interfaces`` and ``out_interfaces`` names. ``matches_new``: it
    can match the first packet of a connection. ``certain``: every expression of it was parsed.
    """

    text: str
    verdict: str = ""
    target: str = ""
    protocols: tuple[str, ...] = ()
    ports: PortRanges = ()
    sources: tuple[str, ...] = ()
    destinations: tuple[str, ...] = ()
    in_interfaces: tuple[str, ...] = ()
    out_interfaces: tuple[str, ...] = ()
    matches_new: bool = True
    certain: bool = True


class FirewallChain(msgspec.Struct, frozen=True, kw_only=True):
    """Rules in order. ``hook`` (``input``, ``output``, …) is where packets enter the chain.

    Empty for a jump target.
    """

    family: str
    table: str
    name: str
    hook: str = ""
    priority: int = 0
    policy: str = "accept"
    rules: tuple[FirewallRule, ...] = ()


def from_nft(output: bytes) -> tuple[FirewallChain, ...] | Unknown:
    """Parse the JSON of nft into the chains of all tables."""
    try:
        items = msgspec.json.decode(output)["nftables"]
        chains = [item["chain"] for item in items if "chain" in item]
        rules = [item["rule"] for item in items if "rule" in item]
        return tuple(_nft_chain(chain, rules) for chain in chains)
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        return Unknown(f"unexpected output of nft: {error!r}"[:200])


def _nft_chain(chain: dict[str, Any], rules: Iterable[dict[str, Any]]) -> FirewallChain:
    key = (chain["family"], chain["table"], chain["name"])
    own = [rule for rule in rules if (rule["family"], rule["table"], rule["chain"]) == key]
    return FirewallChain(
        family=chain["family"],
        table=chain["table"],
        name=chain["name"],
        hook=chain.get("hook", "") if chain.get("type", "filter") == "filter" else "",
        priority=chain.get("prio", 0),
        policy=chain.get("policy", "accept"),
        rules=tuple(_nft_rule(rule["expr"]) for rule in own),
    )


def _nft_rule(expressions: Sequence[dict[str, Any]]) -> FirewallRule:
    text = " ".join(_format_expression(expression) for expression in expressions)
    fields: dict[str, Any] = {"text": text[:_MAX_TEXT]}
    for expression in expressions:
        ((kind, body),) = expression.items()
        if kind in _VERDICTS:
            fields["verdict"] = kind
            fields["target"] = body["target"] if kind in {"jump", "goto"} else ""
        elif kind == "match":
            _parse_nft_match(body, fields)
        elif kind == "vmap":
            _parse_nft_verdict_map(body, fields)
        elif kind not in _NO_EFFECT:
            fields["certain"] = False
    return FirewallRule(**fields)


def _parse_nft_match(body: dict[str, Any], fields: dict[str, Any]) -> None:
    left, values = body["left"], list(_nft_values(body["right"]))
    ((kind, operand),) = left.items() if isinstance(left, dict) else (("", {}),)
    key = operand.get("key", "") if isinstance(operand, dict) else ""
    field = (operand.get("protocol"), operand.get("field")) if kind == "payload" else (kind, key)
    name = {
        ("tcp", "dport"): "ports",
        ("th", "dport"): "ports",
        ("ip", "saddr"): "sources",
        ("ip6", "saddr"): "sources",
        ("ip", "daddr"): "destinations",
        ("ip6", "daddr"): "destinations",
        ("meta", "iifname"): "in_interfaces",
        ("meta", "iif"): "in_interfaces",
        ("meta", "oifname"): "out_interfaces",
        ("meta", "oif"): "out_interfaces",
        ("meta", "l4proto"): "protocols",
        ("ip", "protocol"): "protocols",
    }.get(field)
    if field == ("ct", "state"):
        fields["matches_new"] = ("new" in values) is not (body["op"] == "!=")
    elif field[0] == "udp":
        fields["protocols"] = ("udp",)
    elif name == "ports" and body["op"] == "==" and all(_is_port_range(value) for value in values):
        fields["ports"], fields["protocols"] = tuple(map(_port_range, values)), ("tcp",)
    elif name not in {None, "ports"} and body["op"] in {"==", "!="}:
        prefix = "!" if body["op"] == "!=" else ""
        fields[str(name)] = tuple(prefix + str(value) for value in values)
    else:
        fields["certain"] = False


def _parse_nft_verdict_map(body: dict[str, Any], fields: dict[str, Any]) -> None:
    """Parse the verdict for a new connection in ``ct state vmap { established : accept, … }``."""
    if body["key"] != {"ct": {"key": "state"}} or not isinstance(body["data"], dict):
        fields["certain"] = False
        return
    verdicts = {
        value: verdict for key, verdict in body["data"]["set"] for value in _nft_values(key)
    }
    verdict = verdicts.get("new")
    fields["matches_new"] = verdict is not None
    if verdict:
        ((fields["verdict"], operand),) = verdict.items()
        fields["target"] = operand["target"] if operand else ""


def _format_expression(expression: dict[str, Any]) -> str:
    """Format an expression much as nft prints it: ``tcp dport 29500``, ``drop``.

    Rare kinds by name only.
    """
    ((kind, body),) = expression.items()
    if kind in {"jump", "goto"}:
        return f"{kind} {body['target']}"
    if kind != "match":
        return str(kind)
    left = body["left"]
    ((name, operand),) = left.items() if isinstance(left, dict) else ((str(left), {}),)
    operand = operand if isinstance(operand, dict) else {}
    field = " ".join(str(operand[key]) for key in ("protocol", "field", "key") if key in operand)
    values = [
        f"{value[0]}-{value[1]}" if isinstance(value, tuple) else str(value)
        for value in _nft_values(body["right"])
    ]
    operator = "" if body["op"] in {"==", "in"} else f"{body['op']} "
    return f"{'ct ' if name == 'ct' else ''}{field or name} {operator}{','.join(values)}"


def _nft_values(right: Any) -> Iterator[Any]:
    """Yield one value or those of a set; a prefix as text, a range as a tuple (first, last)."""
    if isinstance(right, list) or (isinstance(right, dict) and "set" in right):
        for item in right if isinstance(right, list) else right["set"]:
            yield from _nft_values(item)
    elif isinstance(right, dict) and "prefix" in right:
        yield f"{right['prefix']['addr']}/{right['prefix']['len']}"
    elif isinstance(right, dict) and "range" in right:
        yield tuple(right["range"])
    else:
        yield right


def _is_port_range(value: Any) -> bool:
    return isinstance(value, int) or (
        isinstance(value, tuple) and all(isinstance(end, int) for end in value)
    )


def _port_range(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def from_iptables(output: bytes, family: str) -> tuple[FirewallChain, ...] | Unknown:
    """Parse the table ``filter`` of iptables-save (family ip) or ip6tables-save (ip6)."""
    policies: dict[str, str] = {}
    rules: dict[str, list[FirewallRule]] = {}
    table = ""
    try:
        for line in output.decode(errors="replace").splitlines():
            if line.startswith("*"):
                table = line[1:].strip()
            elif table == "filter" and line.startswith(":"):
                name, policy = line[1:].split()[:2]
                policies[name] = policy
            elif table == "filter" and line.startswith("-A "):
                words = shlex.split(line)
                rules.setdefault(words[1], []).append(_iptables_rule(words[2:], line))
    except ValueError as error:
        return Unknown(f"unexpected output of iptables-save: {error}")
    return tuple(
        FirewallChain(
            family=family,
            table="filter",
            name=name,
            hook=name.lower() if policy != "-" else "",
            policy="drop" if policy == "DROP" else "accept",
            rules=tuple(rules.get(name, ())),
        )
        for name, policy in policies.items()
    )


def _iptables_rule(words: Sequence[str], line: str) -> FirewallRule:
    fields: dict[str, Any] = {"text": line[:_MAX_TEXT]}
    field_of_option = {
        "-s": "sources",
        "-d": "destinations",
        "-i": "in_interfaces",
        "-o": "out_interfaces",
        "-p": "protocols",
    }
    index, negation = 0, ""
    while index < len(words):
        option, value = words[index], words[index + 1] if index + 1 < len(words) else ""
        index += 2
        if option == "!":
            negation, index = "!", index - 1
            continue
        if option in field_of_option:
            fields[field_of_option[option]] = (negation + value.replace("+", "*"),)
        elif option in {"--dport", "--dports"} and not negation:
            ends = [part.split(":") for part in value.split(",")]
            fields["ports"] = tuple((int(end[0]), int(end[-1])) for end in ends)
        elif option in {"--state", "--ctstate"}:
            fields["matches_new"] = ("NEW" in value.split(",")) is not bool(negation)
        elif option in {"-j", "-g"}:
            _parse_iptables_target(value, "goto" if option == "-g" else "jump", fields)
            break  # the rest are options of the target
        elif option not in {"-m", "--comment"}:  # an option of a module, with or without a value
            fields["certain"] = False
            index -= value.startswith("-")
        negation = ""
    return FirewallRule(**fields)


def _parse_iptables_target(name: str, jump: str, fields: dict[str, Any]) -> None:
    if name in {"ACCEPT", "DROP", "REJECT", "RETURN"}:
        fields["verdict"] = name.lower()
    elif name not in {"LOG", "NFLOG", "TRACE", "MARK", "CONNMARK"}:
        fields["verdict"], fields["target"] = jump, name
