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
from holdfast.launcher.alert_filter import Alert, AlertLevel, QuietHours
from holdfast.launcher.alerts import (
    AlertRequest,
    Alerts,
    failure_alert,
    read_alert_request,
    warning_alert,
)
from tests.unit.cli.in_process import run_holdfast

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
    sender = Alerts(AlertRequest(urls=(receiver.url,), run="run 7"), messages.append)
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
        sender = Alerts(AlertRequest(urls=(url,), run="run 7"), pytest.fail)
        sender.send(
            failure_alert(None, "rank 1 ended with status 3", "stop", stops=True, page=None)
        )
        sender.close()
        server.shutdown()
    (mail,) = server.mails
    assert "me@example.org" in mail
    assert "rank 1 ended with status 3" in mail


def test_an_alert_links_to_the_page_of_the_incident(receiver):
    request = AlertRequest(urls=(receiver.url,), run="run7", page_url="https://host:8080")
    sender = Alerts(request, pytest.fail)
    page = "/runs/run7/incidents/2/report.html"
    verdict = Verdict(question="", root=ROOT)
    sender.send(failure_alert(verdict, "", "restart", stops=False, page=page))
    sender.send(warning_alert(3, "the copy", "no such bucket"))
    sender.close()
    assert [message["message"].partition(" Page: ")[2] for message in receiver.received] == [
        "https://host:8080/run/run7/incidents/2/report.html",
        "https://host:8080/run/run7",
    ]


def test_a_requeued_job_does_not_repeat_an_alert(receiver, tmp_path):
    alert = failure_alert(Verdict(question="", root=ROOT), "", "stop", stops=True, page=None)
    for _ in range(2):
        request = AlertRequest(urls=(receiver.url,), sent_file=tmp_path / alerts.SENT_FILE)
        sender = Alerts(request, pytest.fail)
        sender.send(alert)
        sender.close()
    assert len(receiver.received) == 1


def test_the_variables_are_the_defaults(monkeypatch, tmp_path):
    monkeypatch.setenv("HOLDFAST_ALERTS", "json://a json://b")
    monkeypatch.setenv("HOLDFAST_ALERT_LEVEL", "stop")
    monkeypatch.setenv("HOLDFAST_ALERT_QUIET", "22:00-07:00")
    monkeypatch.setenv("HOLDFAST_PAGE_URL", "https://host/")
    assert read_alert_request((), "r", tmp_path) == AlertRequest(
        urls=("json://a", "json://b"),
        run="r",
        level=AlertLevel.STOP,
        quiet=QuietHours(1320, 420),
        page_url="https://host",
        sent_file=tmp_path / "alerts.json",
    )
    assert read_alert_request(("json://c",), "r", None).urls == ("json://c",)


@pytest.mark.parametrize(
    ("failures", "status", "result"), [(0, 0, "delivered"), (9, 1, "NOT delivered")]
)
def test_the_test_command_reports_each_receiver(failures, status, result):
    with Receiver(failures=failures) as server:
        done = run_holdfast("run", "--alert-test", "--alert", server.url)
        server.shutdown()
    assert (done.returncode, done.stdout) == (status, f"receiver 1 (JSON): {result}\n")
    assert [message["title"] for message in server.received] == ["holdfast: test"]


def test_the_test_command_needs_a_receiver(monkeypatch):
    monkeypatch.delenv("HOLDFAST_ALERTS", raising=False)
    done = run_holdfast("run", "--alert-test")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no receiver of alerts; add --alert URL" in done.stderr


def test_a_failed_delivery_is_retried(monkeypatch):
    monkeypatch.setattr(alerts, "RETRY_PAUSES_S", (0.01, 0.01))
    with Receiver(failures=2) as server:
        sender = Alerts(AlertRequest(urls=(server.url,)), pytest.fail)
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
            AlertRequest(
                urls=(f"json://user:verysecret@127.0.0.1:{port}/alsosecret?rto=1.0&cto=1.0",)
            ),
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
        Alerts(AlertRequest(urls=(url,)), pytest.fail)
    assert "secret" not in str(caught.value)


def test_addresses_are_read_from_a_file(tmp_path, receiver):
    (tmp_path / "addresses").write_text(f"\n{receiver.url}\n")
    sender = Alerts(AlertRequest(urls=(f"@{tmp_path}/addresses",)), pytest.fail)
    sender.send(Alert(title="t", text="x"))
    sender.close()
    assert len(receiver.received) == 1


@pytest.mark.parametrize(("status", "failures", "sent"), [(0, 0, 0), (1, 2, 0), (0, 2, 1)])
def test_the_success_of_a_job_with_failures_is_reported(receiver, status, failures, sent):
    Alerts(AlertRequest(urls=(receiver.url,)), pytest.fail).ended(status, failures)
    assert [(message["message"], message["type"]) for message in receiver.received] == [
        ("The job succeeded after 2 failures.", "success")
    ] * sent


def test_a_problem_that_does_not_stop_the_job_is_a_warning(receiver):
    sender = Alerts(AlertRequest(urls=(receiver.url,)), pytest.fail)
    sender.send(warning_alert(3, "the copy of checkpoints", "no such bucket"))
    sender.close()
    (message,) = receiver.received
    assert (message["type"], message["message"]) == ("warning", "rank 3: no such bucket.")


def test_facts_contain_no_address():
    (fact,) = environment_facts({"HOLDFAST_ALERTS": "json://host/verysecret"})
    assert fact.text == "HOLDFAST_ALERTS=<left out>"
