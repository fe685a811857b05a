"""The routes: pages, their documents, events, reports of incidents, and the metrics."""

from __future__ import annotations

import asyncio
import mimetypes
import threading
from collections.abc import AsyncIterator, Hashable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from holdfast.serve.live import reader
from holdfast.serve.live.stacks import AskJob, read_stack
from holdfast.serve.live.watch import RunWatch
from holdfast.serve.metrics.prometheus import CONTENT_TYPE, collect_runs, render_metrics
from holdfast.serve.web import documents
from holdfast.serve.web.access import AccessControl

#: How often the files are checked for changes, and how often an idle stream is kept alive.
POLL_S, KEEP_ALIVE_S = 0.5, 15.0
#: Concurrent streams of events: each costs a coroutine that checks some files.
MAX_STREAMS = 200
#: The report of an incident has inline style, and one script that its own policy allows. Its origin
#: is opaque, so that it cannot read this site.
REPORT_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "sandbox allow-scripts allow-popups"
)
_ASSETS = frozenset({"app.css", "app.js", "charts.js", "heat.js", "tables.js", "icon.svg"})


def create_application(
    watch: RunWatch,
    token: str | None = None,
    *,
    metrics_only: bool = False,
    ask: AskJob | None = None,
) -> Starlette:
    """Return the application; with ``metrics_only``, only the metrics and the health check.

    ``ask`` reaches ranks on other hosts.
    """
    routes = [Route("/metrics", _metrics), Route("/healthz", _healthz)]
    if not metrics_only:
        routes += [
            Route("/", _index),
            Route("/static/{name}", _asset),
            Route("/run/{run}", _run_page),
            Route("/run/{run}/incidents/{number:int}/report.html", _report),
            Route("/api/runs", _heads),
            Route("/api/run/{run}/live", _live),
            Route("/api/run/{run}/series", _series),
            Route("/api/run/{run}/past", _past),
            Route("/api/run/{run}/rank/{rank:int}", _rank),
            Route("/api/run/{run}/events", _events),
        ]
    application = Starlette(
        routes=routes,
        middleware=[Middleware(AccessControl, token=token)],
        exception_handlers={HTTPException: _one_line},
    )
    application.state.watch = watch
    application.state.ask = ask
    application.state.streams = 0
    application.state.sampling = threading.Lock()
    application.state.is_ending = bool
    return application


async def _one_line(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - the only type that is registered
    return PlainTextResponse(f"holdfast: {error.detail}\n", error.status_code, error.headers)


def _watch(request: Request) -> RunWatch:
    watch: RunWatch = request.app.state.watch
    return watch


def _folder(request: Request) -> Path:
    name = request.path_params["run"]
    folder = _watch(request).find(name)
    if folder is None:
        raise HTTPException(404, f"there is no run {name!r} in {_watch(request).base}")
    return folder


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def _metrics(request: Request) -> Response:
    content = render_metrics(collect_runs(_watch(request)))
    return Response(content, headers={"Content-Type": CONTENT_TYPE})


def _healthz(_request: Request) -> Response:
    return PlainTextResponse("ok\n")


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("holdfast.serve.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _page(name: str, **values: Any) -> Response:
    return Response(_templates().get_template(name).render(**values), media_type="text/html")


def _index(request: Request) -> Response:
    return _page("runs.html", base=str(_watch(request).base))


def _run_page(request: Request) -> Response:
    return _page("run.html", run=_folder(request).name)


def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _ASSETS:
        raise HTTPException(404, "there is no such file")
    content = files("holdfast.serve.web").joinpath("static", name).read_bytes()
    return Response(content, media_type=mimetypes.guess_type(name)[0])


def _report(request: Request) -> Response:
    page = _folder(request) / "incidents" / str(request.path_params["number"]) / "report.html"
    if not page.is_file():
        raise HTTPException(404, "this incident has no report: it was deleted, or is being written")
    return FileResponse(
        page, media_type="text/html", headers={"Content-Security-Policy": REPORT_POLICY}
    )


def _heads(request: Request) -> Response:
    return _json(msgspec.json.encode(_watch(request).heads()))


def _live(request: Request) -> Response:
    watch, folder = _watch(request), _folder(request)
    return _json(documents.live_document(watch.live(folder), watch.live_json(folder)))


def _series(request: Request) -> Response:
    watch, folder = _watch(request), _folder(request)
    try:
        begin, end = (float(request.query_params[name]) for name in ("begin", "end"))
    except KeyError:
        return _json(documents.series_document(watch.series(folder)))
    except ValueError:
        raise HTTPException(400, "begin and end are Unix times in seconds") from None
    return _json(documents.series_document(reader.read_series(folder, within=(begin, end))))


def _past(request: Request) -> Response:
    watch, folder = _watch(request), _folder(request)
    return _json(documents.past_document(watch.past(folder), *watch.reports(folder)))


def _rank(request: Request) -> Response:
    folder, rank = _folder(request), request.path_params["rank"]
    state = _watch(request).live(folder).state
    now = None
    if state is not None and rank in state.ranks.rank:
        now = documents.rank_document(state, state.ranks.rank.index(rank))
    host = now["node"].host if now is not None and now["node"] is not None else ""
    with request.app.state.sampling:  # one sample at a time: each runs py-spy
        stack = read_stack(folder, rank, host, request.app.state.ask)
    return _json(msgspec.json.encode({"rank": rank, "now": now, "stack": stack}))


async def _events(request: Request) -> Response:
    folder, state = _folder(request), request.app.state
    if state.streams >= MAX_STREAMS:
        raise HTTPException(503, f"more than {MAX_STREAMS} pages are open", {"Retry-After": "10"})
    return StreamingResponse(_changes(request, folder), media_type="text/event-stream")


async def _changes(request: Request, folder: Path) -> AsyncIterator[str]:
    """Yield the names of the documents that changed, until the client disconnects."""
    names = ("live", "series", "past")
    known: tuple[Hashable, ...] = (None, None, None)
    idle_s = 0.0
    request.app.state.streams += 1
    try:
        while not (request.app.state.is_ending() or await request.is_disconnected()):
            version = await run_in_threadpool(_watch(request).version, folder)
            changed = [
                name for name, old, new in zip(names, known, version, strict=True) if old != new
            ]
            if changed:
                known, idle_s = version, 0.0
                if "live" in changed:  # pages request it at once
                    await run_in_threadpool(_watch(request).live_json, folder)
                yield f"data: {' '.join(changed)}\n\n"
            elif idle_s >= KEEP_ALIVE_S:
                idle_s = 0.0
                yield ": nothing changed\n\n"
            await asyncio.sleep(POLL_S)
            idle_s += POLL_S
    finally:
        request.app.state.streams -= 1
