"""``holdfast env``: output as text and JSON in every format, its cost, and errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from unittest.mock import patch

import pytest
import yaml

from holdfast import cli
from holdfast.core.errors import InvalidValue
from holdfast.host.variable_recommendation import parse_endpoint
from tests.unit.cli.in_process import run_holdfast
from tests.unit.cli.test_root import imported_by

PROGRAM = [sys.executable, "-m", "holdfast"]
BARE = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}


def run_env(*arguments, **environ):
    """Run the command with only these environment variables."""
    with patch.dict(os.environ, BARE | environ, clear=True):
        return run_holdfast(*arguments)


@pytest.fixture
def ended(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            cli.main(list(arguments))
        shown = capsys.readouterr()
        return end.value.code or 0, shown.out, shown.err

    return run


def test_findings_are_shown_with_the_fix_command():
    done = run_env("env", NCCL_IB_DISABLE="true", NCCL_TIMEOUT="1800")
    assert done.returncode == 1
    assert done.stderr == ""
    assert "✗ NCCL_IB_DISABLE=true is parsed as 0" in done.stdout
    assert "ENV007 variable-value-unusable: export NCCL_IB_DISABLE=1" in done.stdout
    assert "⚠ NCCL_TIMEOUT=1800 has no effect" in done.stdout
    assert done.stdout.splitlines()[-1] == "2 variables: 1 error, 1 warning"


def test_a_healthy_environment():
    done = run_env("env", NCCL_DEBUG="WARN")
    assert (done.returncode, done.stdout) == (0, "1 variable: no problems found\n")


def test_a_terminal_without_unicode_symbols():
    done = subprocess.run(
        [*PROGRAM, "env"],
        env=BARE | {"NCCL_TIMEOUT": "1", "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("! NCCL_TIMEOUT=1 has no effect")


def test_json_is_one_object_with_the_findings_and_without_secrets():
    done = run_env(
        "env", "--json", NCCL_TIMEOUT="1800", HF_TOKEN="hf_aaaaaaaaaaaaaaaaaa", NCCL_X_KEY="s3cret"
    )
    document = json.loads(done.stdout)
    assert document["schema"] == "holdfast/1"
    assert document["command"] == "env"
    assert "ENV004" in [claim["code"] for claim in document["findings"]]
    assert {"name": "NCCL_TIMEOUT", "value": "1800", "origin": "environment"} in document[
        "variables"
    ]
    assert "hf_aaaa" not in done.stdout
    assert "s3cret" not in done.stdout


def test_nccl_configuration_files_are_read_and_the_environment_takes_precedence(tmp_path):
    (tmp_path / "nccl.conf").write_text("# site\nNCCL_TIMEOUT=5\nNCCL_DEBUG=WARN\n")
    done = run_env("env", NCCL_CONF_FILE=str(tmp_path / "nccl.conf"), NCCL_DEBUG="INFO")
    assert f"{tmp_path}/nccl.conf:2: NCCL_TIMEOUT=5 has no effect" in done.stdout.replace(
        "\n  ", " "
    )
    assert run_env("env", NCCL_CONF_FILE=str(tmp_path)).returncode == 0


def test_no_heavy_package_is_imported():
    code = "from holdfast.cli import main; main(['env'])"
    assert imported_by(code, ("torch", "numpy", "rich", "yaml", "psutil", "asyncio")) == []


def test_files_are_scanned(tmp_path):
    (tmp_path / "run.sh").write_text("#!/bin/bash\nexport NCCL_IB_ENABLE=1\n")
    done = run_env("env", "--scan", str(tmp_path), NCCL_TIMEOUT="1")
    assert done.returncode == 0
    assert f"{tmp_path}/run.sh:2: NCCL_IB_ENABLE has no effect" in done.stdout.replace("\n  ", " ")
    assert "NCCL_TIMEOUT" not in done.stdout
    assert (
        done.stdout.splitlines()[-1] == "1 variable in 1 file: nothing that stops a job; 1 warning"
    )


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--scan", "/nonexistent"), "there is no such file"),
        (("--recommend", "--rdzv-endpoint", "a:b:"), "no route"),
        (("--recommend", "--rdzv-endpoint", "a:99999"), "'a:99999' is not HOST[:PORT]"),
        (("--recommend", "--rdzv-endpoint", ":29500"), "is not HOST[:PORT]"),
        (("--profile", "infinband"), "infiniband"),
        (("--recommend", "--scan", "."), "choose one of them"),
        (("--recommend", "--nnodes", "0"), "--nnodes"),
    ],
    ids=str,
)
def test_wrong_usage_is_one_sentence(ended, arguments, word):
    status, out, err = ended("env", *arguments)
    assert word in out + err
    assert "Traceback" not in err
    assert status == 2 or word == "no route"


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("node0", ("node0", 29500)),
        ("node0:1234", ("node0", 1234)),
        ("[fd00::1]:7", ("fd00::1", 7)),
        ("fd00::1", ("fd00::1", 29500)),
        ("[fd00::1]", ("fd00::1", 29500)),
        ("10.0.0.1:0", ("10.0.0.1", 0)),
    ],
)
def test_endpoints(text, endpoint):
    assert parse_endpoint(text) == endpoint


@pytest.mark.parametrize("text", ["", ":1", "a:x", "a:-1", "a:70000", "a:²", "[]:1"])
def test_invalid_endpoints(text):
    with pytest.raises(InvalidValue):
        parse_endpoint(text)


def test_recommendations_as_shell_lines():
    done = run_env("env", "--profile", "debug")
    script = done.stdout + 'printf %s "$TORCH_DISTRIBUTED_DEBUG"'
    assert (
        subprocess.run(["bash", "-ec", script], capture_output=True, text=True, check=True).stdout
        == "DETAIL"
    )
    assert all(line.startswith(("#", "export ")) for line in done.stdout.splitlines())


def test_recommendations_as_a_yaml_manifest():
    found = yaml.safe_load(run_env("env", "--profile", "debug", "--format", "kubernetes").stdout)
    assert {"name": "TORCH_DISTRIBUTED_DEBUG", "value": "DETAIL"} in found["env"]
    assert yaml.safe_load(
        run_env("env", "--profile", "single-node", "--format", "kubernetes").stdout
    ) == {"env": []}


def test_recommendations_for_slurm():
    assert run_env("env", "--profile", "debug", "--format", "slurm").stdout.startswith(
        "#SBATCH --export=ALL\n"
    )


def test_recommendations_as_json_have_their_reasons():
    for form in (("--format", "json"), ("--json",)):
        document = json.loads(run_env("env", "--profile", "debug", *form).stdout)
        assert document["profile"] == "debug"
        assert all(row["why"] for row in document["recommended"])


def test_the_rendezvous_is_read_from_the_launchers_variables():
    for environ in (
        {"MASTER_ADDR": "nowhere.invalid"},
        {"PET_RDZV_ENDPOINT": "nowhere.invalid:29400"},
    ):
        assert "nowhere.invalid" in run_env("env", "--recommend", **environ).stdout
    assert run_env("env", "--recommend", MASTER_ADDR="a", MASTER_PORT="many").returncode == 0


def test_hostile_values_are_escaped_and_truncated():
    environ = {
        b"NCCL_DEBUG": b"\x1b[31mINFO\xff",
        b"NCCL_ALGO": b"a" * 100_000,
        b"NCCL_\x1bX": b"1",
    }
    environ |= {name.encode(): value.encode() for name, value in BARE.items()}
    for more in ([], ["--json"]):
        done = subprocess.run(
            [*PROGRAM, "env", *more], env=environ, capture_output=True, check=False
        )
        assert done.returncode == 1
        assert done.stderr == b""
        assert b"\x1b" not in done.stdout
        assert len(done.stdout) < 20_000
