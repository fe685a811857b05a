"""Who may read: anyone on 127.0.0.1; elsewhere, who has the token."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response

COOKIE = "holdfast-token"
#: No other site, frame or plug-in; the page has no inline script or style.
POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
_UNAUTHORIZED = (
    "holdfast: token required: open the address that `holdfast serve` printed, or send the header "
    "'Authorization: Bearer TOKEN'\n"
)
_WRONG_HOST = "holdfast: this page is served to 127.0.0.1 only; the request names another host\n"

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_Application = Callable[[_Scope, _Receive, _Send], Awaitable[None]]


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is an address or a name of this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class AccessControl:
    """Rejects requests without the token; without a token, requests that name another host.

    The second is what a web page of another site sends whose name resolves to 127.0.0.1. The token
    is sent as a bearer token, as the cookie that ``?token=`` sets, or as ``?token=`` itself.
    """

    def __init__(self, application: _Application, token: str | None) -> None:
        self._application, self._token = application, token

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        refusal = self._refusal(scope, Headers(scope=scope))
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        await self._application(scope, receive, _with_policy(send))

    def _refusal(self, scope: _Scope, headers: Headers) -> Response | None:
        if self._token is None:
            name = urlsplit(f"//{headers.get('host', '')}").hostname or ""
            return None if is_loopback(name) else PlainTextResponse(_WRONG_HOST, 421)
        in_query = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if self._matches(in_query):
            response = RedirectResponse(scope["path"], 303)
            response.set_cookie(COOKIE, in_query, httponly=True, samesite="strict")
            return response
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if self._matches(bearer) or self._matches(_cookie(headers)):
            return None
        return PlainTextResponse(_UNAUTHORIZED, 401, {"WWW-Authenticate": "Bearer"})

    def _matches(self, text: str) -> bool:
        """Compare in constant time."""
        return secrets.compare_digest(text.encode(), (self._token or "").encode()) and bool(text)


def _cookie(headers: Headers) -> str:
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return cookie.value if cookie is not None else ""


def _with_policy(send: _Send) -> _Send:
    """Add the headers of a page that loads nothing from elsewhere, unless the response has them."""

    async def send_with_policy(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            present = {name for name, _ in message["headers"]}
            added = {
                b"content-security-policy": POLICY.encode(),
                b"x-content-type-options": b"nosniff",
                b"referrer-policy": b"no-referrer",
                b"cache-control": b"no-store",
            }
            message["headers"] = [
                *message["headers"],
                *((name, value) for name, value in added.items() if name not in present),
            ]
        await send(message)

    return send_with_policy
