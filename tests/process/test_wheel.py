"""A wheel with compiled extensions records in C++ on a machine without a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from holdfast.core import native_extension
from holdfast.recorder import build
from holdfast.training import packing_extension
from release.wheel import build_wheel, compile_extensions

LIMIT_S = 200
JOB = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("total", total.item())
dist.destroy_process_group()
"""
#: A training loop; the recorder counts its optimizer steps, and hangs a rank at one.
LOOP = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("finished")
dist.destroy_process_group()
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.matrix,
    pytest.mark.timeout(2 * LIMIT_S),
    pytest.mark.skipif(native_extension.find_compiler() is None, reason="no C++ compiler"),
]


@pytest.fixture(params=["cached", "compiled"])
def wheel(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a wheel with the extensions of this torch."""
    prebuilt = tmp_path / "prebuilt"
    prebuilt.mkdir()
    if request.param == "cached":
        assert build.ensure_built(print) is not None
        assert packing_extension.ensure_built(print) is not None
        for extension in (build.recorder_extension(), packing_extension.packing()):
            shutil.copyfile(extension.cached, prebuilt / extension.prebuilt.name)
    else:
        compile_extensions(sys.executable, prebuilt)
    return build_wheel(prebuilt, tmp_path / "dist")


def install(wheel: Path, folder: Path) -> Path:
    """Install the wheel into a new environment with this one's packages; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_paths()["purelib"])
    return python


def run_job(python: Path, folder: Path, script: str, *options: str) -> str:
    """Run the script on two ranks, without a compiler on the PATH; return the output."""
    file = folder / "job.py"
    file.write_text(script)
    kept = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "CXX")}
    environment = kept | {"PATH": str(python.parent), "HOLDFAST_CACHE": str(folder / "cache")}
    command = [str(python.parent / "holdfast"), "run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, *options, str(file)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_clean_installation_records_in_cpp_and_recovers_from_a_hang(
    wheel: Path, tmp_path: Path
) -> None:
    assert "-py3-none-manylinux_2_" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert len([name for name in names if name.startswith("holdfast/recorder/prebuilt/")]) == 2
    python = install(wheel, tmp_path / "venv")
    output = run_job(python, tmp_path, JOB)
    assert output.count("total 2.0") == 2
    assert "recorder native" in output
    assert "ompiling" not in output
    options = ("--max-restarts", "1", "--act-after", "5s", "--inject", "hang@rank=1,step=5")
    output = run_job(python, tmp_path, LOOP, *options)
    assert "rank 1 never entered" in output
    assert "restart 1 of 1" in output
    assert output.count("finished") == 2
