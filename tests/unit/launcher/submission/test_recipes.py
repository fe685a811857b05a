"""The recipes in examples/: their shell parses, and holdfast knows every option in them."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from holdfast.cli.run import OPTIONS
from holdfast.cli.torchrun_options import torchrun_flags

EXAMPLES = Path(__file__).parents[4] / "examples"
KNOWN = {*OPTIONS, *torchrun_flags(), "--checkpoints"}


def test_skypilot():
    task = yaml.safe_load((EXAMPLES / "skypilot" / "holdfast.yaml").read_text())
    for text in (task["setup"], task["run"]):
        assert subprocess.run(["bash", "-n", "-c", text], check=False).returncode == 0
    words = shlex.split(task["run"].replace("\\\n", " "), comments=True)
    assert {word for word in words if word.startswith("--")} <= KNOWN
    assert task["envs"]["HOLDFAST_RUN_DIR"].startswith("/checkpoints/")


def test_ray():
    text = (EXAMPLES / "ray" / "train_with_ray.py").read_text()
    compile(text, "train_with_ray.py", "exec")
    assert set(re.findall(r'"(--[a-z-]+)"', text)) <= KNOWN


@pytest.mark.parametrize("name", ["skypilot", "ray"])
def test_each_recipe_has_a_short_readme(name):
    assert len((EXAMPLES / name / "README.md").read_text().splitlines()) <= 12
