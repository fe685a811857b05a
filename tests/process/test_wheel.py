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

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * LIMIT_S),
    pytest.mark.skipif(native_extension.find_compiler() is None, reason="no C++ compiler"),
]


@pytest.fixture(params=["cached", pytest.param("compiled", marks=pytest.mark.matrix)])
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


def test_the_job_of_a_clean_installation_is_recorded_in_cpp(wheel: Path, tmp_path: Path) -> None:
    assert "-py3-none-manylinux_2_" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert len([name for name in names if name.startswith("holdfast/recorder/prebuilt/")]) == 2
    python = install(wheel, tmp_path / "venv")
    script = tmp_path / "job.py"
    script.write_text(JOB)
    kept = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "CXX")}
    environment = kept | {"PATH": str(python.parent), "HOLDFAST_CACHE": str(tmp_path / "cache")}
    command = [str(python.parent / "holdfast"), "run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(script)],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("total 2.0") == 2
    assert "recorder native" in done.stdout
    assert "ompiling" not in done.stdout
