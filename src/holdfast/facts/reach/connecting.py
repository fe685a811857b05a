"""One attempt to connect, and how exactly it ended: no answer, a reset, or an ICMP error with its sender.

Linux keeps the ICMP error of a TCP connection in the socket's error queue where IP_RECVERR is set (since 5.10; ip(7)).
Where it does not, ``by`` stays empty and only the error number speaks.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import struct
import time
from contextlib import suppress

from holdfast.facts.reach import Attempt, Fate

#: A packet that is dropped is sent again after 1 and after 3 seconds; the second answer is still waited for.
CONNECT_LIMIT_S = 3.2
#: Segments as small as every path carries, so that what the copies tell each other passes where large packets vanish.
SMALL_SEGMENT = 512
_RECVERR = {socket.AF_INET: (socket.IPPROTO_IP, 11), socket.AF_INET6: (socket.IPPROTO_IPV6, 25)}
_ERROR_QUEUE = 0x2000  # MSG_ERRQUEUE, linux/socket.h
_SOCK_EXTENDED_ERR = struct.Struct("=IBBBBII")
_FROM_ICMP = (2, 3)
_HOST_UNREACHABLE = 1


async def connect(
    address: str, port: int, *, limit_s: float = CONNECT_LIMIT_S, small: bool = False
) -> tuple[socket.socket | None, Attempt]:
    """An open connection, or None; and how it went. ``small``: in segments of SMALL_SEGMENT bytes."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    begun = time.monotonic()
    try:
        stream = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        return None, Attempt(address=address, port=port, fate=Fate.FAILED, detail=_words(error))
    stream.setblocking(False)  # noqa: FBT003 - socket's own signature
    _prepare(stream, family, small=small)
    fate, detail, by = Fate.OPEN, "", ""
    try:
        async with asyncio.timeout(limit_s):
            await asyncio.get_running_loop().sock_connect(stream, (address, port))
    except TimeoutError:
        fate, detail = Fate.SILENT, f"no answer within {limit_s:g} s"
    except OSError as error:
        fate, by = _fate(stream, error)
        detail = _words(error)
    except BaseException:
        stream.close()
        raise
    if fate is not Fate.OPEN:
        stream.close()
    attempt = Attempt(
        address=address, port=port, fate=fate, elapsed_s=round(time.monotonic() - begun, 4), detail=detail, by=by
    )
    return (stream if fate is Fate.OPEN else None), attempt


def _prepare(stream: socket.socket, family: socket.AddressFamily, *, small: bool) -> None:
    with suppress(OSError):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with suppress(OSError):
        stream.setsockopt(*_RECVERR[family], 1)
    if small:
        with suppress(OSError):
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SMALL_SEGMENT)


def _words(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)  # asyncio puts other words in place of the system's


def _fate(stream: socket.socket, error: OSError) -> tuple[Fate, str]:
    """What an error means, and who sent it."""
    kind, code, by = _icmp(stream)
    if error.errno == errno.ENETUNREACH and not by:
        return Fate.NO_ROUTE, ""
    if error.errno == errno.ECONNREFUSED:
        return (Fate.REJECTED if kind else Fate.REFUSED), by
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM):
        # What this host tells itself (nobody answers to ARP) comes from one of its own addresses.
        nobody = error.errno == errno.EHOSTUNREACH and (not kind or code in (0, _HOST_UNREACHABLE))
        return (Fate.NOBODY if nobody else Fate.REJECTED), by
    return (Fate.SILENT if error.errno == errno.ETIMEDOUT else Fate.FAILED), by


def _icmp(stream: socket.socket) -> tuple[int, int, str]:
    """Type, code and sender of the ICMP error that ended it; zeros where there was none, or it is hidden."""
    with suppress(OSError, struct.error, ValueError):
        _, ancillary, _, _ = stream.recvmsg(512, 512, _ERROR_QUEUE)
        for _, _, data in ancillary:
            _, origin, kind, code, _, _, _ = _SOCK_EXTENDED_ERR.unpack_from(data)
            if origin in _FROM_ICMP:
                offender = data[_SOCK_EXTENDED_ERR.size :]
                return kind, code, _sender(offender)
    return 0, 0, ""


def _sender(offender: bytes) -> str:
    (family,) = struct.unpack_from("=H", offender)
    if family == socket.AF_INET:
        return str(ipaddress.ip_address(offender[4:8]))
    return str(ipaddress.ip_address(offender[8:24])) if family == socket.AF_INET6 else ""


def tcp_state(stream: socket.socket) -> str:
    """What the kernel knows of a connection that does not advance: segment size, path MTU, what was sent again.

    Offsets of struct tcp_info, linux/tcp.h.
    """
    with suppress(OSError, struct.error):
        info = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
        segment, _, unacked = struct.unpack_from("=III", info, 16)
        (path_mtu,) = struct.unpack_from("=I", info, 60)
        (again,) = struct.unpack_from("=I", info, 100)
        return f"segments of {segment} bytes, path MTU {path_mtu}, {unacked} unacknowledged, {again} sent again"
    return ""
