"""Ports of InfiniBand and RoCE adapters as /sys tells them: state, rate, addresses (GIDs), partitions, errors."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from holdfast.facts import proc
from holdfast.facts.checks import Place, Seen, fact
from holdfast.findings import Fact

DEVICES = "/sys/class/infiniband"
_MOST_GIDS = 64
#: Counters of errors; those of data are left out. hw_counters are the adapter's own.
_COUNTERS = ("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_xmit_discards",
             "local_link_integrity_errors", "excessive_buffer_overrun_errors", "VL15_dropped")  # fmt: skip
_HARDWARE = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "roce_adp_retrans", "rx_icrc_encapsulated",
             "np_cnp_sent", "rp_cnp_handled")  # fmt: skip
_RATE = re.compile(r"([\d.]+) Gb/sec(?: \((\d+)X)?")


class Gid(msgspec.Struct, frozen=True):
    """An address of a port: its index, itself, ``IB/RoCE v1`` or ``RoCE v2``, and the interface that it belongs to."""

    index: int
    address: str
    kind: str
    interface: str

    @property
    def is_second(self) -> bool:
        """Whether RoCE v2 uses it, which routers understand and NCCL wants."""
        return "v2" in self.kind

    @property
    def is_ipv4(self) -> bool:
        """Whether it is an IPv4 address in the form of IPv6."""
        return self.address.startswith("0000:0000:0000:0000:0000:ffff:")


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """One port.

    ``state`` and ``physical`` are the kernel's words without their numbers, ``lanes`` the width of the link. ``gids``
    are those in use, ``pkeys`` the partitions by index (0 is an empty place), ``errors`` what is not zero.
    """

    device: str
    number: int
    kind: str
    firmware: str
    layer: str
    state: str
    physical: str
    rate_gbits: float | None
    lanes: int | None
    subnet_manager: bool
    gids: tuple[Gid, ...]
    pkeys: tuple[int, ...]
    errors: dict[str, int]
    mtu: int | None = None

    @property
    def name(self) -> str:
        """As NCCL_IB_HCA names it."""
        return f"{self.device}:{self.number}"

    @property
    def is_active(self) -> bool:
        """Whether NCCL would use it."""
        return self.state == "ACTIVE"


class InfiniBand(Seen, frozen=True, kw_only=True):
    """All ports, and whether programs can open the adapters (``/dev/infiniband``)."""

    ports: tuple[Port, ...] = ()
    openable: bool = True

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        if self.absent:
            return (fact("InfiniBand and RoCE", self.absent, DEVICES),)
        return tuple(told(port) for port in self.ports)


def told(port: Port) -> Fact:
    """One port in a line."""
    words = [port.layer, port.state, port.physical, f"{port.rate_gbits:g} Gbit/s" if port.rate_gbits else "no rate"]
    words += [f"{name} {count}" for name, count in port.errors.items()]
    return fact(f"{port.device} port {port.number}", ", ".join(filter(None, words)),
                f"{DEVICES}/{port.device}/ports/{port.number}")  # fmt: skip


def look(place: Place) -> InfiniBand:
    """Read every port."""
    folder = place.path(DEVICES)
    ports = [_port(place, device, port) for device in _listed(folder) for port in _listed(device / "ports")]
    found = tuple(port for port in ports if port is not None)
    if not found:
        return InfiniBand(absent="no adapter by the kernel")
    return InfiniBand(ports=found, openable=any(place.path("/dev/infiniband").glob("uverbs*")))


def _port(place: Place, device: Path, port: Path) -> Port | None:
    if not port.name.isdigit() or port.name == "0":
        return None  # 0 is a switch's
    rate = _RATE.match(_first(port / "rate"))
    gids = _gids(port)
    interface = next((gid.interface for gid in gids if gid.interface), "")
    mtu = proc.number(place.path(f"/sys/class/net/{interface}/mtu")) if interface else None
    return Port(
        device=device.name, number=int(port.name), kind=_first(device / "hca_type"), firmware=_first(device / "fw_ver"),
        layer=_first(port / "link_layer"), state=_word(port / "state"), physical=_word(port / "phys_state"),
        rate_gbits=float(rate[1]) if rate else None, lanes=int(rate[2]) if rate and rate[2] else None,
        subnet_manager=_first(port / "sm_lid") not in ("", "0x0", "0"), gids=gids,
        pkeys=tuple(_hex(entry) for entry in _by_number(port / "pkeys")),
        errors=_errors(port), mtu=mtu if isinstance(mtu, int) else None,
    )  # fmt: skip


def _gids(port: Path) -> tuple[Gid, ...]:
    found = []
    for entry in _by_number(port / "gids")[:_MOST_GIDS]:
        address = _first(entry)
        # A place that is not used is all zeros, or a prefix with a zero behind it.
        if not address or address.replace("0", "").replace(":", "") in ("", "fe8"):
            continue
        attributes = port / "gid_attrs"
        found.append(Gid(int(entry.name), address, _first(attributes / "types" / entry.name),
                         _first(attributes / "ndevs" / entry.name)))  # fmt: skip
    return tuple(found)


def _errors(port: Path) -> dict[str, int]:
    counted = {}
    for folder, names in (("counters", _COUNTERS), ("hw_counters", _HARDWARE)):
        for name in names:
            count = proc.number(port / folder / name)
            if isinstance(count, int) and count > 0:
                counted[name] = count
    return counted


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())[:128]
    except OSError:
        return []


def _by_number(folder: Path) -> list[Path]:
    return sorted((entry for entry in _listed(folder) if entry.name.isdigit()), key=lambda entry: int(entry.name))


def _first(path: Path) -> str:
    content = proc.text(path)
    return content.partition("\n")[0].strip() if isinstance(content, str) else ""


def _word(path: Path) -> str:
    """``4: ACTIVE`` is ACTIVE."""
    return _first(path).partition(":")[2].strip()


def _hex(path: Path) -> int:
    try:
        return int(_first(path), 16)
    except ValueError:
        return 0
