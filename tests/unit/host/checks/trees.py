"""A host as a tree of files, in the formats that Linux writes."""

from __future__ import annotations

import socket
import struct

from holdfast.host.checks import CheckContext

_DEV = (
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast"
    "|bytes    packets errs drop fifo colls carrier compressed\n"
)
_ROUTES = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"


def host(folder, files=(), **context):
    """Write the files (path -> content) below ``folder``; return a context whose root is ``folder``."""
    for path, content in dict(files).items():
        file = folder / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return CheckContext(root=str(folder), **context)


def network(interfaces, routes=(), version6=""):
    """Return files of interfaces (name -> address with prefix, attributes) and routes (device, network, gateway,
    metric).

    Attributes are files of /sys/class/net, and ``errors`` and ``dropped`` per million packets.
    """
    files = {
        "/proc/net/dev": _DEV,
        "/proc/net/route": _ROUTES,
        "/proc/net/if_inet6": version6,
        "/proc/net/arp": _ARP,
    }
    trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n"
    for name, (address, attributes) in interfaces.items():
        counts = [
            10,
            1_000_000,
            attributes.pop("errors", 0),
            attributes.pop("dropped", 0),
            *[0] * 12,
        ]
        files["/proc/net/dev"] += f"{name:>6}: {' '.join(map(str, counts))}\n"
        for file, content in {"flags": "0x1003", "mtu": "1500", **attributes}.items():
            files[f"/sys/class/net/{name}/{file}"] = f"{content}\n"
        if address:
            text, _, length = address.partition("/")
            trie += f"           |-- {text}\n              /32 host LOCAL\n"
            files["/proc/net/route"] += _route(name, _masked(text, length), "0.0.0.0", 0)
    for row in routes:
        files["/proc/net/route"] += _route(*row)
    return files | {"/proc/net/fib_trie": trie}


_ARP = "IP address       HW type     Flags       HW address            Mask     Device\n"


def neighbours(*rows):
    """Return the table /proc/net/arp: address, device, and whether it replies."""
    lines = [
        f"{address:<17}0x1         {'0x2' if answers else '0x0'}         02:fc:00:00:00:05     *        {device}\n"
        for address, device, answers in rows
    ]
    return {"/proc/net/arp": _ARP + "".join(lines)}


def _masked(text, length):
    bits = struct.unpack("!I", socket.inet_aton(text))[0] & _mask(length)
    return f"{socket.inet_ntoa(struct.pack('!I', bits))}/{length}"


def _mask(length):
    return (0xFFFFFFFF << (32 - int(length))) & 0xFFFFFFFF


def _digits(text):
    return socket.inet_aton(text)[::-1].hex().upper()


def _route(device, network, gateway, metric, flags=1):
    text, _, length = network.partition("/")
    mask = struct.pack("<I", _mask(length)).hex().upper()
    return f"{device}\t{_digits(text)}\t{_digits(gateway)}\t{flags:04X}\t0\t0\t{metric}\t{mask}\t0\t0\t0\n"
