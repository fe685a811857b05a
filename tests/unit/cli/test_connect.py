"""`holdfast check --connect`: its output on one host, and errors of wrong usage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked_programs import RunningProgram
from tests.ports import free_port

NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
GIVEN = {"--rank": "0", "--world-size": "2", "--master-addr": "127.0.0.1", "--master-port": "29500"}


CHECK = ("-m", "holdfast", "check", "--connect")


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def checking(*words, **variables):
    return RunningProgram(*CHECK, *words, folder=Path.cwd(), **variables)


def checking_in_new_interpreter(*words, **variables):
    return subprocess.Popen(
        [sys.executable, *CHECK, *words],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | variables,
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"--rank": "2"},
            "invalid value for --rank: 2 is not in 0..1 (--world-size is 2)",
        ),
        ({"--rank": "-1"}, "-1 is not in 0..1"),
        ({"--world-size": "0"}, "0 is not a number of ranks"),
        ({"--world-size": "100000"}, "100000 is not a number of ranks from 1 to 4,096"),
        ({"--master-port": "70000"}, "70000 is not a port (1 to 65535)"),
        (
            {"--master-addr": None},
            "--connect requires --master-addr, or the variable MASTER_ADDR, on every host",
        ),
        ({"--wait": "soon"}, "'soon' is not a duration"),
    ],
)
def test_an_invalid_option_is_reported_in_one_sentence(changed, message):
    words = [
        word
        for option, value in (GIVEN | changed).items()
        if value is not None
        for word in (option, value)
    ]
    done = checking(*words).result()
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_wrong_variable_is_one_sentence():
    done = checking(
        RANK="first", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500"
    ).result()
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "invalid value for --rank: 'first' is not an integer" in done.stderr


@pytest.mark.slow
def test_ranks_come_from_the_launchers_variables_and_stages_are_timed():
    port = str(free_port())
    rendezvous = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "GLOO_SOCKET_IFNAME": "lo",
    }
    shown, plain = checking(RANK="0", **rendezvous), checking("--json", RANK="1", **rendezvous)
    done = shown.result()
    out = done.stdout
    assert (done.returncode, done.stderr) == (0, ""), out + done.stderr
    for stage in (
        "resolve: 127.0.0.1",
        "route: from",
        "tcp: port",
        "hosts: 2 hosts",
        "import: torch",
        "store of 2",
        "group of 2: gloo",
        "barrier of 2",
        "all-reduce of 2: 4 B in",
    ):
        assert f"✓  {stage}" in out
    assert "nothing failed" in out
    done = plain.result()
    document = json.loads(done.stdout)
    assert (done.returncode, document["findings"]) == (0, [])
    timings = {each["size_bytes"]: each["best_s"] for each in document["stages"][-1]["timings"]}
    assert set(timings) == {4, 1 << 10, 1 << 16, 1 << 20, 4 << 20}


@pytest.mark.slow
def test_an_absent_rank_is_reported_after_the_timeout():
    port = str(free_port())
    done = checking(
        "--wait", "1s", RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port
    ).result()
    assert (done.returncode, done.stderr) == (1, "")
    out = " ".join(done.stdout.split())
    assert "node 1 of 2" in out or "do not meet" in out


@pytest.mark.slow
def test_a_failed_torch_import_on_one_rank_is_reported_on_all(tmp_path):
    (tmp_path / "torch.py").write_text(
        "raise ImportError('libcudart.so.12: cannot open shared object file')"
    )
    port = str(free_port())
    rendezvous = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "GLOO_SOCKET_IFNAME": "lo",
    }
    commands = [
        checking_in_new_interpreter("--json", RANK="0", **rendezvous),
        checking_in_new_interpreter("--json", RANK="1", PYTHONPATH=str(tmp_path), **rendezvous),
    ]
    for command in commands:
        (claim,) = json.loads(command.communicate(timeout=60)[0])["findings"]
        assert (command.returncode, claim["cause"]) == (1, "python-exception-on-one-rank")
        assert claim["message"].startswith("rank 1 ")
        assert "cannot import torch: ImportError: libcudart.so.12" in claim["message"]


@pytest.mark.slow
def test_a_host_with_a_different_command_is_reported():
    port = str(free_port())
    words = (
        "--only",
        "swap",
        "--nnodes",
        2,
        "--node-rank",
        0,
        "--rdzv-endpoint",
        f"127.0.0.1:{port}",
    )
    leading = RunningProgram("-m", "holdfast", "check", *words, folder=Path.cwd())
    done = checking(
        "--json", RANK="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port
    ).result()
    assert leading.result().stderr == ""
    (claim,) = json.loads(done.stdout)["findings"]
    assert (done.returncode, done.stderr, claim["cause"]) == (1, "", "launch-arguments-differ")
    assert "run different commands" in claim["message"]
