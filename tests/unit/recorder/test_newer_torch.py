"""With a torch whose private interfaces differ, collectives work and one line says what is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.watcher.trace_reader import TraceReading
from tests.forked_programs import RunningProgram

JOB = """
import sys
from pathlib import Path
import torch, torch.distributed as dist
from holdfast.core.trace_file import TraceWriter
from holdfast.recorder import bootstrap, python_kernels
{difference}
bootstrap._attach(TraceWriter(Path("rank0.trace"), rank=0, world_size=1))
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
total = torch.ones(1)
for _ in range(2):
    dist.all_reduce(total)
dist.barrier()
dist.destroy_process_group()
print("total", total.item())
"""
MOVED = """
schema = python_kernels.SCHEMAS["allreduce_"]
python_kernels.SCHEMAS["allreduce_"] = schema._replace(group=0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("difference", "line", "recorded"),
    [
        (MOVED, "holdfast: all_reduce of torch", {"barrier"}),
        (
            "del torch._C._after_autograd_keyset",
            "holdfast: the recorder does not support this torch",
            set(),
        ),
    ],
)
def test_collectives_work_unrecorded(
    difference: str, line: str, recorded: set[str], tmp_path: Path
) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB.format(difference=difference))
    done = RunningProgram(script, folder=tmp_path, HOLDFAST_RECORDER="python").result()
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("total 1.0\n")  # after what gloo of torch 2.8 prints
    lines = [each for each in done.stderr.splitlines() if each.startswith("holdfast: ")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith(line)
    calls = {call.name for call in TraceReading(tmp_path / "rank0.trace").recent(9)}
    assert calls & {"all_reduce", "barrier"} == recorded
