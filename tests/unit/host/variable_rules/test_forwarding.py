"""Variables that DeepSpeed's launcher does not forward to the ranks: by the rule, and by the launcher itself."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from holdfast.host.launch_files.scanning import scan_folder
from holdfast.host.variable_rules import audit
from holdfast.host.variable_rules.context import AuditContext

SET = "export GLOO_SOCKET_IFNAME=eth0\n"


@pytest.fixture
def lost(tmp_path):
    """Return a function that lists a script's variables that do not reach the ranks, with their lines."""

    def inspect(text, name="run.sh", **besides):
        (tmp_path / name).write_text(text)
        for file, content in besides.items():
            (tmp_path / file).write_text(content)
        settings = scan_folder([tmp_path / name]).settings
        findings = [
            finding
            for finding in audit(settings, AuditContext())
            if finding.cause == "variable-not-sent"
        ]
        return [(finding.message.partition("=")[0], finding.subject.line) for finding in findings]

    return inspect


@pytest.mark.parametrize(
    "line",
    [
        "deepspeed --hostfile=hosts train.py",
        "deepspeed --hostfile hosts --master_port 29501 train.py --lr 1",
        "deepspeed -H hosts train.py",
        "nohup /opt/conda/bin/deepspeed --num_nodes 2 --num_gpus 8 train.py > log 2>&1 &",
        "ds --num_nodes=4 --launcher OpenMPI train.py",
        "if true; then deepspeed --hostfile hosts \\\n  train.py; fi",
        "env A=1 deepspeed --hostfile hosts train.py",
        'deepspeed --hostfile hosts --include="node1:0,1@node2:2,3" $SCRIPT --deepspeed',
    ],
)
def test_launch_lines_that_send_few_variables(lost, line):
    assert lost(f"#!/bin/bash\n{SET}{line}\n") == [("GLOO_SOCKET_IFNAME", 2)]


@pytest.mark.parametrize(
    "line",
    [
        "deepspeed train.py",
        "deepspeed --include localhost:0,1 train.py --hostfile a",
        "deepspeed --hostfile hosts --num_nodes 1 train.py",
        "deepspeed --hostfile hosts --no_ssh --node_rank 1 train.py",
        "deepspeed --hostfile hosts --launcher slurm train.py",
        "torchrun --nnodes 2 deepspeed.py",
        "echo deepspeed --hostfile hosts train.py",
        "# deepspeed --hostfile hosts train.py",
        "pip install deepspeed",
    ],
)
def test_launch_lines_that_send_all_or_start_one_host(lost, line):
    assert lost(f"#!/bin/bash\n{SET}{line}\n") == []


def test_which_variables_are_lost(lost):
    text = (
        "export NCCL_DEBUG=WARN UCX_TLS=tcp MASTER_ADDR=a CUDA_VISIBLE_DEVICES=0\n"
        "export TORCH_NCCL_DUMP_ON_TIMEOUT=1\n"
        "OMP_NUM_THREADS=8 deepspeed --hostfile hosts train.py\n"
        "GLOO_SOCKET_IFNAME=eth0 python evaluate.py\n"
        "export NCCL_NET_GDR_LEVEL=PHB TORCH_DISTRIBUTED_DEBUG=INFO\n"
    )
    assert lost(text) == [("TORCH_NCCL_DUMP_ON_TIMEOUT", 2), ("OMP_NUM_THREADS", 3)]


def test_variables_in_the_deepspeed_file_are_sent(lost):
    text = f"{SET}OMP_NUM_THREADS=8 deepspeed --hostfile hosts train.py\n"
    assert lost(text, **{".deepspeed_env": "GLOO_SOCKET_IFNAME=eth0\n"}) == [("OMP_NUM_THREADS", 2)]


def test_a_block_of_yaml_has_the_lines_of_the_file(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(
        "steps:\n- run: |\n    export GLOO_SOCKET_IFNAME=eth0\n    deepspeed --hostfile h train.py\n"
    )
    (finding,) = audit(scan_folder([file]).settings, AuditContext())
    assert (finding.cause, finding.subject.line) == ("variable-not-sent", 3)
    assert "deepspeed (line 4)" in finding.message


@pytest.mark.slow
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="runs DeepSpeed's own launcher")
def test_the_launcher_itself_sends_exactly_that(lost, tmp_path):
    """A fake pdsh records its arguments."""
    (tmp_path / "pdsh").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\n')
    (tmp_path / "pdsh").chmod(0o755)
    (tmp_path / "hosts").write_text("node0 slots=1\nnode1 slots=1\n")
    variables = {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "8", "UCX_TLS": "tcp"}
    script = "".join(f"export {name}={value}\n" for name, value in variables.items())
    script += "deepspeed --hostfile hosts train.py\n"
    names = [
        name for name, _ in lost(script, **{".deepspeed_env": "TORCH_NCCL_DUMP_ON_TIMEOUT=1\n"})
    ]
    subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "deepspeed.launcher.runner",
            "--hostfile",
            "hosts",
            "--no_ssh_check",
            "--master_addr",
            "node0",
            "train.py",
        ],
        cwd=tmp_path,
        check=True,
        timeout=100,
        capture_output=True,
        env={
            **os.environ,
            **variables,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
        },
    )
    arguments = (tmp_path / "arguments").read_text()
    sent = {
        name
        for name in (*variables, "TORCH_NCCL_DUMP_ON_TIMEOUT")
        if f"export {name}=" in arguments
    }
    assert sent == {"UCX_TLS", "TORCH_NCCL_DUMP_ON_TIMEOUT"}
    assert names == ["GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS"]
