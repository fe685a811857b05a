"""The API and its access rules, over a real socket."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import urllib.error
import urllib.request

import pytest

from holdfast.core.errors import InvalidValue
from holdfast.serve.web.access import is_loopback
from holdfast.serve.web.server import open_socket
from tests.unit.serve.served import RUN, make_run, serving

TOKEN = "a-token-of-this-test"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    base = tmp_path_factory.mktemp("runs")
    make_run(base, 16, stuck=2)
    (base / "secret.txt").write_text("secret")
    with serving(base) as where:
        yield where


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    base = tmp_path_factory.mktemp("runs")
    make_run(base, 8)
    with serving(base, TOKEN) as where:
        yield where


def get(url, **headers):
    """Return status, headers and body, without following redirects."""
    host, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=10)
    connection.request("GET", f"/{path}", headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


def read(address, path):
    status, _, body = get(address + path)
    assert status == 200, body
    return json.loads(body)


def test_the_documents_of_a_run(address):
    (head,) = read(address, "/api/runs")
    assert (head["name"], head["live"], head["failures"], head["command"]) == (
        RUN,
        True,
        1,
        "train.py --lr 1",
    )
    live = read(address, f"/api/run/{RUN}/live")
    assert live["state"]["ranks"]["rank"] == list(range(16))
    assert not live["stale"]
    past = read(address, f"/api/run/{RUN}/past")
    assert [event["kind"] for event in past["events"]] == ["begun", "started", "failed"]
    assert ["decision", "restart: the first failure"] in past["events"][-1]["details"]
    assert past["incidents"][0]["root"]["cause"] == "rank-missing-collective"
    series = read(address, f"/api/run/{RUN}/series")
    assert len(series["at"]) == len(series["waits"]) == 8


def test_a_part_of_the_series_is_selected_by_time(address):
    at = read(address, f"/api/run/{RUN}/series")["at"]
    part = read(address, f"/api/run/{RUN}/series?begin={at[2]}&end={at[4]}")
    assert part["at"] == at[2:5]
    assert get(f"{address}/api/run/{RUN}/series?begin=x&end=1")[0] == 400


def test_a_rank_has_its_state_and_its_stack_from_the_incident(address):
    found = read(address, f"/api/run/{RUN}/rank/2")
    assert found["now"]["step"] == 107
    assert found["stack"]["origin"] == "in incident 0"
    assert found["stack"]["frames"] == ["/job/train.py:41 in train", "/job/train.py:9 in main"]
    assert read(address, f"/api/run/{RUN}/rank/3")["now"]["wait"][2] == "2"
    assert read(address, f"/api/run/{RUN}/rank/999")["now"] is None


@pytest.mark.parametrize(
    "path",
    ["/run/none", "/run/..%2F..%2Fetc", "/static/..%2F..%2Faccess.py", "/static/access.py", "/secret.txt",
     f"/run/{RUN}/incidents/7/report.html", f"/run/{RUN}/incidents/..%2F0/report.html", "/api/run/%00/live"],
)  # fmt: skip
def test_nothing_else_is_served(address, path):
    status, _, body = get(address + path)
    assert status == 404
    assert body.count(b"\n") == 1


def test_the_report_of_an_incident_has_an_opaque_origin(address):
    status, headers, body = get(f"{address}/run/{RUN}/incidents/0/report.html")
    assert status == 200
    assert b"the report of incident 0" in body
    assert "sandbox allow-scripts" in headers["Content-Security-Policy"]
    assert "default-src 'none'" in headers["Content-Security-Policy"]


def test_every_other_answer_loads_nothing_from_elsewhere(address):
    for path in ("/", f"/run/{RUN}", "/api/runs", "/none"):
        _, headers, _ = get(address + path)
        assert headers["Content-Security-Policy"].startswith("default-src 'self';")


def test_another_host_name_is_refused_without_a_token(address):
    status, _, body = get(f"{address}/api/runs", Host="attacker.example")
    assert status == 421
    assert body.count(b"\n") == 1


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/runs", "/static/app.js", "/none"])
def test_a_client_without_the_token_gets_one_line(guarded, path):
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Cookie": "holdfast-token=x"},
    ):
        status, answer, body = get(guarded + path, **headers)
        assert status == 401
        assert answer["WWW-Authenticate"] == "Bearer"
        assert body.startswith(b"holdfast: token required: ")
        assert body.count(b"\n") == 1


def test_the_token_is_a_header_or_a_cookie_that_its_address_sets(guarded):
    assert get(f"{guarded}/api/runs", Authorization=f"Bearer {TOKEN}")[0] == 200
    status, headers, _ = get(f"{guarded}/?token={TOKEN}")
    assert (status, headers["Location"]) == (303, "/")
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert get(f"{guarded}/api/runs", Cookie=cookie.split(";")[0])[0] == 200


def test_metrics_only_serves_no_page(tmp_path):
    make_run(tmp_path, 8)
    with serving(tmp_path, metrics_only=True) as address:
        assert b"holdfast_world_size" in get(f"{address}/metrics")[2]
        assert get(f"{address}/healthz")[2] == b"ok\n"
        assert get(f"{address}/api/runs")[0] == 404


def test_a_stream_reports_first_all_documents(address):
    host, port = address.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.request("GET", f"/api/run/{RUN}/events")
    stream = connection.getresponse()
    assert stream.readline() == b"data: live series past\n"
    connection.close()


def test_a_run_that_is_deleted_meanwhile_is_no_server_error(tmp_path):
    folder = make_run(tmp_path, 8)
    with serving(tmp_path) as address:
        assert read(address, "/api/runs")
        shutil.rmtree(folder)
        for path in ("live", "series", "past", "rank/2"):
            assert get(f"{address}/api/run/{RUN}/{path}")[0] in (200, 404)
        assert get(f"{address}/metrics")[0] == get(f"{address}/api/runs")[0] == 200


@pytest.mark.slow
def test_a_browser_that_disconnects_a_thousand_times_leaves_nothing_behind(address):
    host, port = address.removeprefix("http://").split(":")
    request = f"GET /api/run/{RUN}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    refused = 0
    for number in range(1000):
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(request)
            if number % 4 == 0:
                refused += b"503" in client.recv(64)
    assert refused < 250
    for _ in range(100):
        with urllib.request.urlopen(f"{address}/api/runs", timeout=10) as answer:
            assert answer.status == 200
    with urllib.request.urlopen(f"{address}/api/run/{RUN}/events", timeout=10) as stream:
        assert stream.readline() == b"data: live series past\n"


def test_a_port_in_use_is_one_sentence():
    with open_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(InvalidValue, match="pass another --port"):
            open_socket("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("localhost.evil.example", False)],
)  # fmt: skip
def test_only_addresses_of_this_machine_need_no_token(host, expected):
    assert is_loopback(host) is expected
