"""Runs the application on an address until it is interrupted."""

from __future__ import annotations

import errno
import socket

import uvicorn
from starlette.applications import Starlette

from holdfast.core.errors import InvalidValue
from holdfast.core.text import os_error_reason

#: Open streams get this long to end.
_SHUTDOWN_S = 2


def open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 chooses a free one.

    Raises:
        InvalidValue: the address cannot be used.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError:
            listener.close()
            raise
        listener.listen(128)
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        raise InvalidValue(
            f"{host}:{port}",
            why=os_error_reason(error),
            next_step="pass another --port, or 0 for a free one"
            if in_use
            else "pass another --host",
        ) from error
    return listener


def make_server(application: Starlette) -> uvicorn.Server:
    """Return a server whose end also ends the open streams of events."""
    config = uvicorn.Config(
        application,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=_SHUTDOWN_S,
    )
    server = uvicorn.Server(config)
    application.state.is_ending = lambda: server.should_exit
    return server
