"""The programs that are written make the groups that are said: run by 8 ranks over gloo."""

from pathlib import Path

import pytest
import torch.distributed as dist

from holdfast.plan.groups import groups
from holdfast.plan.groups_code import mesh_code, new_group_code
from holdfast.plan.setup import Setup
from tests.runtime.comm.ranks import run

#: With and without experts, context ranks and replicas; pipelines outside and inside.
CASES = [
    (Setup(data=2, tensor=2, context=2, expert=2), "tp-cp-ep-dp-pp"),
    (Setup(data=4, replicas=2, pipeline=2), "tp-cp-ep-dp-pp"),
    (Setup(data=2, tensor=2, pipeline=2), "tp-cp-ep-pp-dp"),
]


def made(_: int, programs: list[str]) -> list[dict[str, list[int]]]:
    """Groups of this rank by each program."""
    found = []
    for program in programs:
        names: dict[str, object] = {"__name__": "generated"}
        exec(compile(program, "generated", "exec"), names)
        found.append({kind: dist.get_process_group_ranks(group) for kind, group in names["make_groups"]().items()})
    return found


@pytest.mark.slow
def test_eight_ranks_are_in_the_groups_that_were_said(tmp_path: Path) -> None:
    wanted = [groups(setup, order) for setup, order in CASES for _ in range(2)]
    programs = [write(found) for found, write in zip(wanted, [_on_cpu, new_group_code] * len(CASES), strict=True)]
    for rank, each in enumerate(run(8, made, tmp_path, programs)):
        assert each == [found.of(rank) for found in wanted]


def _on_cpu(found):
    return mesh_code(found, "cpu")


@pytest.mark.parametrize(("setup", "order"), CASES)
def test_programs_are_python_in_lines_that_can_be_read(setup, order):
    for write in (mesh_code, new_group_code):
        program = write(groups(setup, order))
        compile(program, "generated", "exec")
        assert max(map(len, program.splitlines())) <= 120
