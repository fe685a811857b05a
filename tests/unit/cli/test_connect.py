"""`holdfast check --connect`: its output on one host, and errors of wrong usage."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.ports import free_port

NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
GIVEN = {"--rank": "0", "--world-size": "2", "--master-addr": "127.0.0.1", "--master-port": "29500"}


def checked(*words, **variables):
    environ = {name: text for name, text in os.environ.items() if name not in NAMES} | variables
    command = [sys.executable, "-m", "holdfast", "check", "--connect", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
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
    command = checked(*words)
    out, err = command.communicate(timeout=20)
    assert (command.returncode, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_wrong_variable_is_one_sentence():
    command = checked(RANK="first", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    _, err = command.communicate(timeout=20)
    assert (command.returncode, err.count("\n")) == (2, 1)
    assert "invalid value for --rank: 'first' is not an integer" in err


@pytest.mark.slow
def test_ranks_come_from_the_launchers_variables_and_stages_are_timed():
    port = str(free_port())
    rendezvous = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "GLOO_SOCKET_IFNAME": "lo",
    }
    shown, plain = checked(RANK="0", **rendezvous), checked("--json", RANK="1", **rendezvous)
    out, err = shown.communicate(timeout=60)
    assert (shown.returncode, err) == (0, ""), out + err
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
    document = json.loads(plain.communicate(timeout=60)[0])
    assert (plain.returncode, document["findings"]) == (0, [])
    timings = {each["size_bytes"]: each["best_s"] for each in document["stages"][-1]["timings"]}
    assert set(timings) == {4, 1 << 10, 1 << 16, 1 << 20, 4 << 20}


@pytest.mark.slow
def test_an_absent_rank_is_reported_after_the_timeout():
    port = str(free_port())
    command = checked(
        "--wait", "1s", RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port
    )
    out, err = command.communicate(timeout=60)
    assert (command.returncode, err) == (1, "")
    assert "node 1 of 2" in " ".join(out.split()) or "do not meet" in " ".join(out.split())


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
        checked("--json", RANK="0", **rendezvous),
        checked("--json", RANK="1", PYTHONPATH=str(tmp_path), **rendezvous),
    ]
    for command in commands:
        (claim,) = json.loads(command.communicate(timeout=60)[0])["findings"]
        assert (command.returncode, claim["cause"]) == (1, "python-exception-on-one-rank")
        assert claim["message"].startswith("rank 1 ")
        assert "cannot import torch: ImportError: libcudart.so.12" in claim["message"]


@pytest.mark.slow
def test_a_host_with_a_different_command_is_reported():
    port = str(free_port())
    led = [
        sys.executable,
        "-m",
        "holdfast",
        "check",
        "--only",
        "swap",
        "--nnodes",
        "2",
        "--node-rank",
        "0",
        "--rdzv-endpoint",
        f"127.0.0.1:{port}",
    ]
    with subprocess.Popen(
        led, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as leading:
        command = checked(
            "--json", RANK="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port
        )
        out, err = command.communicate(timeout=60)
        assert leading.communicate(timeout=60)[1] == ""
    (claim,) = json.loads(out)["findings"]
    assert (command.returncode, err, claim["cause"]) == (1, "", "launch-arguments-differ")
    assert "run different commands" in claim["message"]
