"""`holdfast attach` on a job of DeepSpeed's launcher; skipped if DeepSpeed is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec

import psutil
import pytest

from tests.ports import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("deepspeed") is None, reason="DeepSpeed is not installed: make setup"
    ),
]
LIMIT_S = 100
PROGRAM = """
import os, time
import torch, deepspeed
deepspeed.ops.__compatible_ops__.clear()  # otherwise it compiles extensions first
deepspeed.init_distributed(dist_backend="gloo")
model = torch.nn.Linear(8, 8)
settings = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
for step in range(100):
    if step == 2 and deepspeed.comm.get_rank() == 1:
        os.write(1, b"asleep\\n")
        time.sleep(3600)  # GUILTY
    engine.backward(engine(torch.randn(2, 8)).sum())
    engine.step()
"""
(LINE,) = (at for at, text in enumerate(PROGRAM.splitlines(), 1) if text.endswith("# GUILTY"))


def cpu_time_used(pid, seconds):
    """Return the CPU time that all processes of a job use within ``seconds``."""
    family = psutil.Process(pid).children(recursive=True)
    before = sum(sum(each.cpu_times()[:2]) for each in family)
    time.sleep(seconds)
    return sum(sum(each.cpu_times()[:2]) for each in family) - before


@pytest.mark.matrix
def test_missing_rank_is_root(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    port = free_port()
    variables = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    launch = [
        sys.executable,
        "-m",
        "deepspeed.launcher.runner",
        "--num_gpus",
        "2",
        "--master_port",
        str(port),
    ]
    output = tmp_path / "output"
    with output.open("wb") as file:
        job = subprocess.Popen(
            [*launch, "--no_local_rank", "train.py"],
            cwd=tmp_path,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        until = time.monotonic() + LIMIT_S
        while "asleep" not in output.read_text(errors="replace"):
            assert time.monotonic() < until, output.read_text(errors="replace")
            assert job.poll() is None, output.read_text(errors="replace")
            time.sleep(0.1)
        while cpu_time_used(job.pid, 1.5) > 0.05:  # until the other rank waits in the collective
            assert time.monotonic() < until
        attached = subprocess.run(
            [sys.executable, "-m", "holdfast", "attach", "--json", "--port", str(port)],
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
    finally:
        for each in [*psutil.Process(job.pid).children(recursive=True), job]:
            each.kill()
        job.wait()
    assert attached.stderr == ""
    report = json.loads(attached.stdout)
    root = report["verdict"]["root"]
    assert (attached.returncode, root["cause"]) == (1, "rank-missing-collective")
    assert (root["subject"]["rank"], root["subject"]["line"]) == (1, LINE)
    assert (report["job"]["launcher"], report["job"]["script"]) == ("deepspeed", "train.py")
