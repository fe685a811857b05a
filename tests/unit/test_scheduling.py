"""A worker's death fails only the test that killed it; the run finishes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DIES = "import os\ndef test_before(): pass\ndef test_dies(): os._exit(1)\ndef test_after(): pass\n"
LIVES = "import time\ndef test_lives(): time.sleep(0.02)\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "dying",
    [
        (5,),
        *(pytest.param(each, marks=pytest.mark.matrix) for each in ((0,), (2, 4), tuple(range(6)))),
    ],
)
def test_the_other_tests_of_a_dead_worker_run(tmp_path, dying):
    for at in range(6):
        (tmp_path / f"test_{at}.py").write_text(DIES if at in dying else LIVES)
    options = "-p tests.scheduling -n 2 --dist loadfile --no-loadscope-reorder -c /dev/null -p no:cacheprovider -rA"
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options.split(), "--rootdir", tmp_path, tmp_path],
        capture_output=True,
        text=True,
        timeout=90,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    ran = sorted(re.findall(r"^(PASSED|FAILED) (?:\S+/)?(\S+)", result.stdout, re.MULTILINE))
    expected = [("FAILED", f"test_{at}.py::test_dies") for at in dying]
    expected += [
        ("PASSED", f"test_{at}.py::test_{name}") for at in dying for name in ("after", "before")
    ]
    expected += [("PASSED", f"test_{at}.py::test_lives") for at in range(6) if at not in dying]
    assert ran == sorted(expected), result.stdout
