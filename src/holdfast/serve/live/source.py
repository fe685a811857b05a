"""Where a terminal view reads a run: in its folder, or from a `holdfast serve` over HTTP."""

from __future__ import annotations

import time
from http.client import HTTPException
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import parse_qs, quote, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

import msgspec

from holdfast.core.errors import MissingFile
from holdfast.core.live_state import MAX_STATE_BYTES
from holdfast.core.text import escape_invisible, shorten
from holdfast.serve.live import reader
from holdfast.serve.live.reader import LiveReading
from holdfast.serve.live.runs import RunHead
from holdfast.serve.live.stacks import RankStack, read_stack

#: Limit of a request; a stack may be sampled meanwhile.
REQUEST_S = 5.0
#: Longest error text of a server that is shown.
MAX_ERROR = 200

_Value = TypeVar("_Value")


class RunSource(Protocol):
    """A run: its ``name`` for messages, its live state, and the stack of one of its ranks."""

    @property
    def name(self) -> str:
        """Folder or address."""

    def read(self) -> LiveReading:
        """Return the live state; what is wrong is a sentence in it."""

    def stack(self, rank: int, host: str) -> RankStack:
        """Return the stack of a rank, which runs on ``host`` as far as known."""


class FolderSource:
    """A run folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def name(self) -> str:
        """The folder."""
        return str(self._folder)

    def read(self) -> LiveReading:
        """Return the newest state in the folder."""
        return reader.read_live(self._folder, time.time())

    def stack(self, rank: int, host: str) -> RankStack:
        """Sample the stack, or read it from an incident."""
        return read_stack(self._folder, rank, host)


class _RankAnswer(msgspec.Struct, frozen=True):
    stack: RankStack = RankStack()


class ServerSource:
    """A run that a `holdfast serve` shows; without a run in ``address``, its newest.

    Raises:
        MissingFile: the server cannot be reached, refuses, or shows no run.
    """

    def __init__(self, address: str, token: str | None) -> None:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        self._base = f"{parts.scheme}://{parts.netloc}"
        self._token = parse_qs(parts.query).get("token", [token or ""])[0]
        self._run = unquote(parts.path.removeprefix("/run/").strip("/"))
        try:
            self._run = self._run or self._newest()
            self._get(f"/api/run/{quote(self._run, safe='')}/live", LiveReading)
        except _RequestFailed as error:
            raise MissingFile(
                self._base,
                why=str(error),
                next_step="pass the address that `holdfast serve` or `holdfast run` printed; the "
                "token may be in HOLDFAST_SERVE_TOKEN",
            ) from error

    @property
    def name(self) -> str:
        """The address of the page of the run."""
        return f"{self._base}/run/{quote(self._run)}"

    def read(self) -> LiveReading:
        """Return the state that the server shows."""
        try:
            reading = self._get(f"/api/run/{quote(self._run, safe='')}/live", LiveReading)
        except _RequestFailed as error:
            return LiveReading(stale=True, problems=(f"{self._base}: {error}",))
        problem = "" if reading.state is None else reader.find_inconsistency(reading.state)
        if problem:
            return LiveReading(stale=True, problems=(f"the state of {self._base} {problem}",))
        return reading

    def stack(self, rank: int, host: str) -> RankStack:  # noqa: ARG002 - the server knows the host
        """Return the stack that the server samples or reads."""
        try:
            path = f"/api/run/{quote(self._run, safe='')}/rank/{rank}"
            return self._get(path, _RankAnswer).stack
        except _RequestFailed as error:
            return RankStack(why=f"{self._base}: {error}")

    def _newest(self) -> str:
        heads = self._get("/api/runs", list[RunHead])
        if not heads:
            raise _RequestFailed("it shows no run")
        return heads[0].name

    def _get(self, path: str, kind: type[_Value]) -> _Value:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        request = Request(self._base + path, headers=headers)  # noqa: S310 - checked by is_address
        try:
            with _OPENER.open(request, timeout=REQUEST_S) as answer:
                data = answer.read(MAX_STATE_BYTES + 1)
        except HTTPError as error:
            with error:
                text = error.read(MAX_ERROR).decode(errors="replace")
            raise _RequestFailed(_one_line(text) or f"status {error.code}") from error
        except URLError as error:
            raise _RequestFailed(_reason(error.reason)) from error
        except (OSError, HTTPException, ValueError) as error:
            raise _RequestFailed(_reason(error)) from error
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _RequestFailed(f"its answer is not that of `holdfast serve`: {error}") from error


class _NoRedirects(HTTPRedirectHandler):
    """Refuses redirects: the token is for this server only."""

    def redirect_request(self, *_: object) -> None:
        """Return no other request."""


#: Direct connections: a proxy of the environment is for other networks.
_OPENER = build_opener(ProxyHandler({}), _NoRedirects())


class _RequestFailed(Exception):
    """Why a request failed, in words."""


def _one_line(text: str) -> str:
    line = next(iter(text.removeprefix("holdfast: ").splitlines()), "")
    return escape_invisible(shorten(line, MAX_ERROR))


def _reason(error: Any) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return f"it cannot be reached: {_one_line(text)}"


def is_address(text: str) -> bool:
    """Return whether ``text`` is the address of a server, not a folder: a URL, or HOST:PORT."""
    if text.startswith(("http://", "https://")):
        return True
    host, colon, port = text.rpartition(":")
    return bool(host and colon) and port.isdecimal() and not Path(text).exists()
