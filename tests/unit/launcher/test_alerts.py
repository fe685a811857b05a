"""Alerts to a real HTTP receiver and a real SMTP server."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from holdfast.core.errors import InvalidValue
from holdfast.core.findings import Finding, Level, Subject, Verdict
from holdfast.host.environment import environment_facts
from holdfast.launcher import alerts
from holdfast.launcher.alerts import Alert, Alerts, RateLimit, failure_alert, warning_alert

pytest.importorskip("apprise", reason="apprise is not installed")
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # emitted by imports of apprise services

ROOT = Finding(
    code="PROC006",
    cause="rank-killed",
    level=Level.ERROR,
    message="rank 2 was killed by SIGKILL",
    subject=Subject(rank=2, host="node7"),
    confidence=0.9,
)


class Receiver(HTTPServer):
    """Records requests; responds with status 500 to the first ``failures`` requests."""

    def __init__(self, failures=0):
        self.received, self.failures = [], failures
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"json://user:verysecret@127.0.0.1:{self.server_port}/hook/alsosecret"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append(json.loads(body))
        self.send_response(500 if len(self.server.received) <= self.server.failures else 200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def receiver():
    with Receiver() as server:
        yield server
        server.shutdown()


class Mail(socketserver.ThreadingTCPServer):
    """Implements the SMTP commands that one mail needs."""

    allow_reuse_address = daemon_threads = True

    def __init__(self):
        self.mails = []
        super().__init__(("127.0.0.1", 0), _MailHandler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _MailHandler(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(b"220 test\r\n")
        for line in self.rfile:
            command = line.split()[0].upper() if line.split() else b""
            if command == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                mail = b"".join(iter(self.rfile.readline, b".\r\n"))
                self.server.mails.append(mail.decode())
            self.wfile.write(
                {b"EHLO": b"250 test\r\n", b"QUIT": b"221 bye\r\n"}.get(command, b"250 ok\r\n")
            )
            if command == b"QUIT":
                return


def test_an_http_receiver_gets_the_verdict(receiver):
    messages = []
    sender = Alerts([receiver.url], "run 7", messages.append)
    sender.send(
        failure_alert(
            Verdict(question="", root=ROOT), "", "restart 1 of 3", stops=False, page="/runs/r.html"
        )
    )
    sender.close()
    (message,) = receiver.received
    assert message["type"] == "failure"
    assert message["title"] == "holdfast: run 7: rank 2 was killed by SIGKILL"
    assert message["message"] == (
        "rank 2 was killed by SIGKILL (PROC006 rank-killed, 90% confidence, on node7). Action: restart 1 of 3. "
        "Report: /runs/r.html. Details: `holdfast explain PROC006`."
    )
    assert messages == []


def test_an_email_is_sent():
    with Mail() as server:
        port = server.server_address[1]
        url = f"mailto://127.0.0.1:{port}?from=job@example.org&to=me@example.org&mode=insecure"
        sender = Alerts([url], "run 7", pytest.fail)
        sender.send(
            failure_alert(None, "rank 1 ended with status 3", "stop", stops=True, page=None)
        )
        sender.close()
        server.shutdown()
    (mail,) = server.mails
    assert "me@example.org" in mail
    assert "rank 1 ended with status 3" in mail


def test_repeated_alerts_are_suppressed_and_counted():
    restraint = RateLimit()
    first, other = (
        Alert(title="a", text="a.", same=("a",)),
        Alert(title="b", text="b.", same=("b",)),
    )
    assert restraint.admit(first, 0.0) == first
    assert [restraint.admit(first, at) for at in (1.0, 2.0, 599.0)] == [None] * 3
    assert restraint.admit(other, 3.0) == other
    repeated = restraint.admit(first, 601.0)
    assert repeated is not None
    assert repeated.text == "a. (3 like it were held back.)"


def test_alerts_per_hour_are_limited_except_the_last_one():
    restraint = RateLimit()
    sent = [
        restraint.admit(Alert(title="", text="", same=(number,)), number) for number in range(20)
    ]
    assert sum(each is not None for each in sent) == alerts.MAX_ALERTS
    last = restraint.admit(Alert(title="", text="over.", last=True), 30.0)
    assert last is not None
    assert last.text == "over. (8 of the alerts before it were held back.)"
    assert restraint.admit(Alert(title="", text="later", same=(99,)), 3700.0) is not None


def test_a_failed_delivery_is_retried(monkeypatch):
    monkeypatch.setattr(alerts, "RETRY_PAUSES_S", (0.01, 0.01))
    with Receiver(failures=2) as server:
        sender = Alerts([server.url], "run", pytest.fail)
        sender.send(Alert(title="t", text="x"))
        sender.close()
        server.shutdown()
    assert len(server.received) == 3


def test_an_unresponsive_receiver_blocks_nothing_and_no_secret_is_printed(monkeypatch, capfd):
    monkeypatch.setattr(alerts, "RETRY_PAUSES_S", (0.01,))
    messages = []
    with socket.create_server(
        ("127.0.0.1", 0)
    ) as silent:  # accepts the connection and never responds
        port = silent.getsockname()[1]
        sender = Alerts(
            [f"json://user:verysecret@127.0.0.1:{port}/alsosecret?rto=1.0&cto=1.0"],
            "run",
            messages.append,
        )
        began = time.monotonic()
        sender.send(Alert(title="t", text="x"))
        assert time.monotonic() - began < 0.5
        sender.close()
    assert messages == ["the alert could not be delivered to receiver 1 (JSON); the job continues"]
    assert "secret" not in "".join((*messages, *capfd.readouterr()))


@pytest.mark.parametrize(
    "url", ["nonsense", "nosuchservice://verysecret@host", "slack://", "@/no/such/file"]
)
def test_an_invalid_address_is_not_shown_in_the_error(url):
    with pytest.raises(InvalidValue) as caught:
        Alerts([url], "run", pytest.fail)
    assert "secret" not in str(caught.value)


def test_addresses_are_read_from_a_file(tmp_path, receiver):
    (tmp_path / "addresses").write_text(f"\n{receiver.url}\n")
    sender = Alerts([f"@{tmp_path}/addresses"], "run", pytest.fail)
    sender.send(Alert(title="t", text="x"))
    sender.close()
    assert len(receiver.received) == 1


@pytest.mark.parametrize(("status", "failures", "sent"), [(0, 0, 0), (1, 2, 0), (0, 2, 1)])
def test_the_success_of_a_job_with_failures_is_reported(receiver, status, failures, sent):
    Alerts([receiver.url], "run", pytest.fail).ended(status, failures)
    assert [(message["message"], message["type"]) for message in receiver.received] == [
        ("The job succeeded after 2 failures.", "success")
    ] * sent


def test_a_problem_that_does_not_stop_the_job_is_a_warning(receiver):
    sender = Alerts([receiver.url], "run", pytest.fail)
    sender.send(warning_alert(3, "the copy of checkpoints", "no such bucket"))
    sender.close()
    (message,) = receiver.received
    assert (message["type"], message["message"]) == ("warning", "rank 3: no such bucket.")


def test_facts_contain_no_address():
    (fact,) = environment_facts({"HOLDFAST_ALERTS": "json://host/verysecret"})
    assert fact.text == "HOLDFAST_ALERTS=<left out>"
