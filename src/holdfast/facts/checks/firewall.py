"""The firewall of this host: rules of nftables and iptables, whoever made them (ufw, firewalld, Docker, a person).

Read with ``nft`` and ``iptables-save``, which need root; nothing is changed. ufw's own settings can be read by anybody.
"""

from __future__ import annotations

from holdfast.facts import proc, programs
from holdfast.facts.checks import Place, Seen, fact
from holdfast.facts.checks.interfaces import Interfaces
from holdfast.facts.checks.interfaces import look as interfaces
from holdfast.facts.checks.ports import look as ports
from holdfast.facts.netfilter import Chain, from_iptables, from_nft
from holdfast.facts.resolver import endpoint_elsewhere
from holdfast.findings import Fact, Unknown

_LIMIT_S = 3.0
_UFW, _UFW_DEFAULT = "/etc/ufw/ufw.conf", "/etc/default/ufw"
_LEGACY = "/proc/net/ip_tables_names"


class Firewall(Seen, frozen=True, kw_only=True):
    """All chains that filter. ``manager`` is the program that makes them, where it shows (``ufw``, ``firewalld``).

    ``ufw_policy``: what ufw does with connections that no rule of it names, where it is on. ``legacy``: rules of the
    older iptables beside, which only iptables can read. ``networks``: those of this host, where peers are expected;
    ``ephemeral``: ports that its programs listen on where they name none; ``endpoint``: another host's addresses.
    """

    chains: tuple[Chain, ...] | Unknown
    manager: str = ""
    ufw_policy: str = ""
    legacy: Unknown | None = None
    networks: tuple[tuple[str, str], ...] = ()
    ephemeral: tuple[int, int] | None = None
    endpoint: tuple[str, ...] = ()

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`: the chains in which packets of this host arrive or leave."""
        told = [fact("ufw", f"on, others: {self.ufw_policy}", f"{_UFW}, {_UFW_DEFAULT}")] if self.ufw_policy else []
        if isinstance(self.chains, Unknown):
            return (fact("firewall", self.chains, "nft, iptables-save"), *told)
        hooked = [chain for chain in self.chains if chain.hook in {"input", "output"}]
        count = sum(len(chain.rules) for chain in self.chains)
        by = f", made by {self.manager}" if self.manager else ""
        text = f"{count} rules in {len(self.chains)} chains{by}" if count else "no rules"
        told.insert(0, fact("firewall", text, "nft list ruleset, iptables-save"))
        told += [fact(f"{chain.family} {chain.table} {chain.name}", f"{chain.hook}, policy {chain.policy}, "
                      f"{len(chain.rules)} rules", "nft, iptables-save") for chain in hooked]  # fmt: skip
        return (*told, *((fact("older iptables", self.legacy, _LEGACY),) if self.legacy else ()))


def look(place: Place) -> Firewall:
    """Ask nft and iptables; in a recorded tree, whose kernel cannot be asked, only ufw's settings."""
    chains, legacy = (
        _chains() if place.root == "/" else (Unknown("the rules of another host cannot be asked for"), None)
    )
    seen, span = interfaces(place), ports(place).ephemeral
    return Firewall(
        chains=chains,
        manager="" if isinstance(chains, Unknown) else _manager(chains),
        ufw_policy=_ufw(place),
        legacy=legacy,
        networks=_networks(seen),
        ephemeral=None if isinstance(span, Unknown) else span,
        endpoint=endpoint_elsewhere(place),
    )


def _networks(seen: Interfaces) -> tuple[tuple[str, str], ...]:
    """Interface and address with its prefix, of those that lead to other hosts."""
    found = () if isinstance(seen.interfaces, Unknown) else seen.interfaces
    outer = [one for one in found if one.up is True and not one.loopback and not one.inner]
    return tuple((one.name, text) for one in outer for text in (*one.wide(4), *one.wide(6)))


def _chains() -> tuple[tuple[Chain, ...] | Unknown, Unknown | None]:
    """Nft knows all but the older iptables; the newer iptables knows its own tables better than nft does."""
    nft = programs.said(("nft", "-j", "list", "ruleset"), _LIMIT_S)
    found = nft if isinstance(nft, Unknown) else from_nft(nft)
    older: list[Chain] = []
    troubles = []
    for program, family in (("iptables-save", "ip"), ("ip6tables-save", "ip6")):
        saved = programs.said((program,), _LIMIT_S)
        parsed = saved if isinstance(saved, Unknown) else from_iptables(saved, family)
        if isinstance(parsed, Unknown):
            troubles.append(parsed)
        else:
            older += parsed
    if isinstance(found, Unknown):
        return (tuple(older), None) if older else (_neither(found, troubles), None)
    kept = [chain for chain in found if not _is_iptables(chain) or troubles]
    missing = troubles[0] if troubles and _legacy_tables() else None
    return (*kept, *older), missing


def _neither(nft: Unknown, troubles: list[Unknown]) -> Unknown:
    """Where neither can be read. Rules that are not there look the same from outside: not known is not none."""
    return Unknown("; ".join(dict.fromkeys(each.why for each in (nft, *troubles[:1]))))


def _is_iptables(chain: Chain) -> bool:
    return chain.table == "filter" and chain.family in {"ip", "ip6"} and chain.name.isupper()


def _legacy_tables() -> bool:
    names = proc.text(_LEGACY)
    return isinstance(names, str) and "filter" in names.split()


def _manager(chains: tuple[Chain, ...]) -> str:
    if any(chain.table == "firewalld" for chain in chains):
        return "firewalld"
    if any(chain.name.startswith("ufw") for chain in chains):
        return "ufw"
    return ""


def _ufw(place: Place) -> str:
    """Ufw's policy for what comes in, where it is on; empty where it is off or not installed."""
    switch, defaults = proc.text(place.path(_UFW)), proc.text(place.path(_UFW_DEFAULT))
    if isinstance(switch, Unknown) or "ENABLED=yes" not in switch.splitlines():
        return ""
    lines = defaults.splitlines() if isinstance(defaults, str) else []
    found = [line.partition("=")[2].strip('"').lower() for line in lines if line.startswith("DEFAULT_INPUT_POLICY=")]
    return found[0] if found else "drop"
