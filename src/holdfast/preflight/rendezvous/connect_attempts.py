"""Connect once and report exactly how it ended.

No answer, a reset, or an ICMP error and its sender.

Linux queues the ICMP error of a TCP connection in the socket's error queue if IP_RECVERR is set
(since 5.10; ip(7)). Elsewhere ``by`` stays empty and only the error number is known.
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

from holdfast.preflight.rendezvous import ConnectAttempt, ConnectOutcome

#: A dropped packet is retransmitted after 1 and 3 seconds; this covers the second retransmission.
CONNECT_LIMIT_S = 3.2
#: Segments that every path carries, so that control messages pass where large packets are lost.
SMALL_SEGMENT = 512
_RECVERR = {socket.AF_INET: (socket.IPPROTO_IP, 11), socket.AF_INET6: (socket.IPPROTO_IPV6, 25)}
_ERROR_QUEUE = 0x2000  # MSG_ERRQUEUE, linux/socket.h
_SOCK_EXTENDED_ERR = struct.Struct("=IBBBBII")
_ICMP_ORIGINS = (2, 3)
_HOST_UNREACHABLE = 1


async def try_connect(
    address: str, port: int, *, limit_s: float = CONNECT_LIMIT_S, small: bool = False
) -> tuple[socket.socket | None, ConnectAttempt]:
    """Return a connected socket, or None, and the outcome.

    ``small``: use SMALL_SEGMENT segments.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    begun = time.monotonic()
    try:
        stream = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        return None, ConnectAttempt(
            address=address, port=port, outcome=ConnectOutcome.FAILED, detail=_describe(error)
        )
    stream.setblocking(False)  # noqa: FBT003 - socket's own signature
    _configure(stream, family, small=small)
    outcome, detail, by = ConnectOutcome.OPEN, "", ""
    try:
        async with asyncio.timeout(limit_s):
            await asyncio.get_running_loop().sock_connect(stream, (address, port))
    except TimeoutError:
        outcome, detail = ConnectOutcome.TIMED_OUT, f"no answer within {limit_s:g} s"
    except OSError as error:
        outcome, by = _classify(stream, error)
        detail = _describe(error)
    except BaseException:
        stream.close()
        raise
    if outcome is not ConnectOutcome.OPEN:
        stream.close()
    attempt = ConnectAttempt(
        address=address,
        port=port,
        outcome=outcome,
        elapsed_s=round(time.monotonic() - begun, 4),
        detail=detail,
        by=by,
    )
    return (stream if outcome is ConnectOutcome.OPEN else None), attempt


def _configure(stream: socket.socket, family: socket.AddressFamily, *, small: bool) -> None:
    with suppress(OSError):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with suppress(OSError):
        stream.setsockopt(*_RECVERR[family], 1)
    if small:
        with suppress(OSError):
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SMALL_SEGMENT)


def _describe(error: OSError) -> str:
    """Return the system's text of the error, which asyncio replaces by its own."""
    return os.strerror(error.errno) if error.errno else str(error)


def _classify(stream: socket.socket, error: OSError) -> tuple[ConnectOutcome, str]:
    """Return the outcome of an error and the address that sent it."""
    kind, code, by = _read_icmp_error(stream)
    if error.errno == errno.ENETUNREACH and not by:
        return ConnectOutcome.NO_ROUTE, ""
    if error.errno == errno.ECONNREFUSED:
        return (ConnectOutcome.REJECTED if kind else ConnectOutcome.REFUSED), by
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM):
        # Without an answer to ARP, this host itself is the sender of the error.
        no_host = error.errno == errno.EHOSTUNREACH and (not kind or code in (0, _HOST_UNREACHABLE))
        return (ConnectOutcome.NO_HOST if no_host else ConnectOutcome.REJECTED), by
    timed_out = error.errno == errno.ETIMEDOUT
    return (ConnectOutcome.TIMED_OUT if timed_out else ConnectOutcome.FAILED), by


def _read_icmp_error(stream: socket.socket) -> tuple[int, int, str]:
    """Return type, code and sender of the ICMP error; zeros if there is none or it is hidden."""
    with suppress(OSError, struct.error, ValueError):
        _, ancillary, _, _ = stream.recvmsg(512, 512, _ERROR_QUEUE)
        for _, _, data in ancillary:
            _, origin, kind, code, _, _, _ = _SOCK_EXTENDED_ERR.unpack_from(data)
            if origin in _ICMP_ORIGINS:
                offender = data[_SOCK_EXTENDED_ERR.size :]
                return kind, code, _parse_sender(offender)
    return 0, 0, ""


def _parse_sender(offender: bytes) -> str:
    (family,) = struct.unpack_from("=H", offender)
    if family == socket.AF_INET:
        return str(ipaddress.ip_address(offender[4:8]))
    return str(ipaddress.ip_address(offender[8:24])) if family == socket.AF_INET6 else ""


def describe_tcp_state(stream: socket.socket) -> str:
    """Describe a stalled connection.

    Segment size, path MTU, unacknowledged and retransmitted segments.

    Offsets of struct tcp_info, linux/tcp.h.
    """
    with suppress(OSError, struct.error):
        info = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
        segment, _, unacked = struct.unpack_from("=III", info, 16)
        (path_mtu,) = struct.unpack_from("=I", info, 60)
        (retransmitted,) = struct.unpack_from("=I", info, 100)
        return (
            f"segments of {segment} bytes, path MTU {path_mtu}, {unacked} unacknowledged, "
            f"{retransmitted} retransmitted"
        )
    return ""
