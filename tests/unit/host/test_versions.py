"""Versions read from the files of installers and drivers."""

import platform
import sys

import pytest

import holdfast
from holdfast.host.versions import installed_versions

TORCH = """\
from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']
__version__ = '2.13.0+cu126'
debug = False
cuda: Optional[str] = '12.6'
git_version = 'cf30153'
hip: Optional[str] = None
"""


def texts(facts):
    return {name: value for name, _, value in (fact.text.partition(": ") for fact in facts)}


@pytest.fixture
def cluster(tmp_path):
    """Return two package folders, the first of which takes precedence, and a driver."""
    first, second, proc = tmp_path / "first", tmp_path / "second", tmp_path / "proc"
    for folder in (
        first / "torch",
        first / "torch-2.13.0+cu126.dist-info",
        first / "nvidia_nccl_cu12-2.27.5.dist-info",
        first / "numpy-2.1.0.dist-info",
        second / "numpy-1.26.4.dist-info",
        second / "Megatron.Core-0.9.0.egg-info",
        proc / "driver/nvidia",
    ):
        folder.mkdir(parents=True)
    (first / "torch/version.py").write_text(TORCH)
    driver = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\nGCC version:  gcc 12.2.0\n"
    (proc / "driver/nvidia/version").write_text(driver)
    return [str(first), str(second), str(tmp_path / "none"), ""], proc


def test_a_cluster(cluster):
    known = texts(installed_versions(*cluster))
    assert known["torch"] == "2.13.0+cu126"
    assert known["torch is built for"] == "CUDA 12.6"
    assert known["torch commit"] == "cf30153"
    assert known["NCCL"] == "2.27.5 (nvidia-nccl-cu12)"
    assert known["NVIDIA driver"] == "550.54.15"
    assert known["numpy"] == "2.1.0"
    assert known["megatron-core"] == "0.9.0"


def test_an_empty_host(tmp_path):
    known = texts(installed_versions([str(tmp_path)], tmp_path))
    assert known["torch"] == "not installed"
    assert known["NCCL"].startswith("not installed as a package")
    assert known["NVIDIA driver"] == "not loaded"
    assert "numpy" not in known


def test_torch_without_a_version(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text("__version__ = compute()\n")
    assert texts(installed_versions([str(tmp_path)], tmp_path))["torch"] == "unknown version"


@pytest.mark.parametrize("content", ["", "no number\n"])
def test_a_driver_without_a_version(tmp_path, content):
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "driver/nvidia/version").write_text(content)
    assert texts(installed_versions([], tmp_path))["NVIDIA driver"].startswith("unknown (")


def test_this_environment():
    facts = installed_versions()
    known = texts(facts)
    assert known["Python"].startswith(platform.python_version())
    assert known["holdfast"] == holdfast.__version__
    assert known["kernel"].startswith("Linux ")
    assert facts[0].origin == sys.executable
