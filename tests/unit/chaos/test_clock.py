"""A shifted wall clock jumps while a program runs; monotonic clocks do not."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from holdfast.chaos import shifted_clock

pytestmark = pytest.mark.skipif(
    bool(shifted_clock.unsupported_reason()), reason=shifted_clock.unsupported_reason()
)
READS = """
import datetime, sys, time
for _ in sys.stdin:
    wall, calendar = time.time(), datetime.datetime.now(datetime.timezone.utc).timestamp()
    print(wall, calendar, time.monotonic(), flush=True)
"""


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_clock_jumps_while_a_program_runs(tmp_path, seconds):
    environment = {**os.environ, **shifted_clock.create_clock(tmp_path)}
    command = [sys.executable, "-c", READS]
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as program:

        def read():
            program.stdin.write("\n")
            wall, calendar, monotonic = map(float, program.stdout.readline().split())
            return wall - time.time(), calendar - time.time(), monotonic - time.monotonic()

        assert read() == pytest.approx((0, 0, 0), abs=60)
        shifted_clock.shift_clock(tmp_path, seconds)
        assert read() == pytest.approx((seconds, seconds, 0), abs=60)
        shifted_clock.shift_clock(tmp_path, 0)
        assert read() == pytest.approx((0, 0, 0), abs=60)
        program.stdin.close()
