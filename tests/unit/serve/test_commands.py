"""The commands: a real server process, missing extras, wrong folders."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request

import pytest

from tests.unit.cli.in_process import run_holdfast
from tests.unit.serve.served import make_run


@pytest.mark.slow
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_server_prints_its_address_serves_and_ends_on_ctrl_c(tmp_path, host):
    make_run(tmp_path, 8)
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "serve", str(tmp_path), "--host", host, "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    line = process.stderr.readline()
    address = line.split()[-1]
    port = address.split(":")[-1].split("/")[0]
    token = address.partition("?token=")[2]
    assert line.startswith(f"holdfast: {tmp_path} at http://")
    assert bool(token) is (host == "0.0.0.0")
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics")
    request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert b"holdfast_world_size" in answer.read()
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    process.stderr.close()
    assert process.wait(20) == 130
    assert rest.strip() == ""


@pytest.mark.parametrize(
    ("command", "package"),
    [("serve", "uvicorn"), ("serve", "prometheus_client"), ("top", "textual")],
)
def test_a_missing_extra_is_one_sentence(tmp_path, monkeypatch, command, package):
    make_run(tmp_path, 8)
    for name in [*sys.modules]:
        if name.partition(".")[0] == package or name.startswith("holdfast.serve."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("holdfast.cli.top.is_terminal", lambda: True)
    done = run_holdfast(command, tmp_path)
    assert done.returncode == 2
    assert "holdfast[serve]" in done.stderr
    assert "pip install" in done.stderr
    assert done.stderr.count("\n") <= 2


def test_a_folder_that_does_not_exist_is_one_sentence(tmp_path):
    for command in ("serve", "top"):
        done = run_holdfast(command, tmp_path / "none")
        assert done.returncode == 2
        assert "none" in done.stderr


def test_the_rules_are_written_without_a_run(tmp_path):
    done = run_holdfast("serve", "--write-rules", tmp_path / "rules", "--port", "9000")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 3
    assert "127.0.0.1:9000" in (tmp_path / "rules" / "prometheus.yml").read_text()
