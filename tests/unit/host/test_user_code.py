"""Classify frames: user code, torch, an installed package, the standard library, or holdfast."""

import sysconfig
import threading

import pytest

import holdfast
from holdfast.core.rank_table import SourceLine, ThreadStack
from holdfast.host.processes.user_code import innermost_user_frame, is_installed, is_library_frame

SITE = "/opt/env/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    "file",
    [
        "",
        "<frozen runpy>",
        "<string>",
        threading.__file__,
        f"{sysconfig.get_path('stdlib')}/json/decoder.py",
        "/usr/lib/python3.12/queue.py",
        "/opt/conda/lib/python3.13t/queue.py",
        holdfast.__file__,
        f"{SITE}/holdfast/runtime/bootstrap.py",
        f"{SITE}/torch/nn/modules/module.py",
        f"{SITE}/triton/compiler.py",
        "/src/pytorch/torch/distributed/distributed_c10d.py",
        "/src/pytorch/torch/_ops.py",
        "/src/pytorch/torch/serialization.py",
    ],
)
def test_machinery(file):
    assert is_library_frame(file)


@pytest.mark.parametrize(
    "file",
    [
        "/job/train.py",
        "/home/u/torch/train.py",
        "/home/u/holdfast/tests/train.py",
        f"{SITE}/megatron/train.py",
    ],
)
def test_not_machinery(file):
    assert not is_library_frame(file)
    assert is_installed(file) == file.startswith(SITE)


TORCH = SourceLine(f"{SITE}/torch/distributed/distributed_c10d.py", 9, "all_reduce")
INSTALLED = SourceLine(f"{SITE}/lightning/loop.py", 3, "advance")
OWN = SourceLine("/job/train.py", 41, "main")
TYPED_IN = SourceLine("<stdin>", 1, "<module>")
FROZEN = SourceLine("<frozen runpy>", 88, "_run_code")


@pytest.mark.parametrize(
    ("frames", "found"),
    [
        ((TORCH, INSTALLED, OWN, FROZEN), OWN),
        ((TORCH, INSTALLED, FROZEN), INSTALLED),
        ((TORCH, TYPED_IN), TYPED_IN),
        ((TYPED_IN, OWN), OWN),
        ((TORCH, FROZEN), None),
        ((), None),
    ],
)
def test_innermost_user(frames, found):
    assert innermost_user_frame(ThreadStack(frames)) == found
