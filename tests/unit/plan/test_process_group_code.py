"""Generated programs create the planned process groups on 8 gloo ranks."""

from pathlib import Path

import pytest
import torch.distributed as dist

from holdfast.plan.layout.process_group_code import render_mesh_code
from holdfast.plan.layout.process_groups import build_process_groups
from holdfast.plan.setup import TrainingSetup
from tests.unit.training.collectives.ranks import run

#: With and without experts, context ranks and replicas; pipeline as outermost or inner dimension.
CASES = [
    (TrainingSetup(data=2, tensor=2, context=2, expert=2), "tp-cp-ep-dp-pp"),
    (TrainingSetup(data=4, replicas=2, pipeline=2), "tp-cp-ep-dp-pp"),
    (TrainingSetup(data=2, tensor=2, pipeline=2), "tp-cp-ep-pp-dp"),
]


def create_groups(_: int, programs: list[str]) -> list[dict[str, list[int]]]:
    """Return this rank's groups as created by each program."""
    result = []
    for program in programs:
        names: dict[str, object] = {"__name__": "generated"}
        exec(compile(program, "generated", "exec"), names)
        result.append(
            {
                kind: dist.get_process_group_ranks(group)
                for kind, group in names["make_groups"]().items()
            }
        )
    return result


@pytest.mark.slow
def test_eight_ranks_create_the_planned_groups(tmp_path: Path) -> None:
    planned = [build_process_groups(setup, order) for setup, order in CASES]
    programs = [render_mesh_code(groups, "cpu") for groups in planned]
    for rank, each in enumerate(run(8, create_groups, tmp_path, programs)):
        assert each == [groups.groups_of_rank(rank) for groups in planned]


@pytest.mark.parametrize(("setup", "order"), CASES)
def test_generated_programs_are_valid_python(setup, order):
    program = render_mesh_code(build_process_groups(setup, order))
    compile(program, "generated", "exec")
    assert max(map(len, program.splitlines())) <= 120
