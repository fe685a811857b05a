"""Calls of libraries that need all ranks are reported if only one rank makes them."""

import pytest

from holdfast.lint.run import lint_paths

PROGRAM = """
import torch
import torch.distributed as dist
{imports}


def main(net, t):
    dist.init_process_group("nccl")
    {before}
    if dist.get_rank() == 0:
        {call}
    dist.destroy_process_group()


if __name__ == "__main__":
    main(torch.nn.Linear(4, 4), torch.ones(1))
"""
ZERO = "opt = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD)"
CALLS = [
    ("torch.distributed.optim", "ZeroRedundancyOptimizer", ZERO, "opt.step()"),
    ("torch.distributed.optim", "ZeroRedundancyOptimizer", ZERO, "opt.consolidate_state_dict()"),
    ("torch.distributed.tensor", "distribute_tensor", "pass", "distribute_tensor(t, t, [])"),
    (
        "torch.distributed.pipelining",
        "ScheduleGPipe",
        "schedule = ScheduleGPipe(net, 2)",
        "schedule.step(t)",
    ),
    ("mmengine.dist", "collect_results", "pass", "collect_results([1], 3)"),
    ("torch.distributed.checkpoint", "save", "pass", 'save({}, checkpoint_id="last")'),
]


@pytest.mark.parametrize(("home", "name", "before", "call"), CALLS)
def test_a_call_on_one_rank_is_found(home, name, before, call, tmp_path):
    imports = f"from {home} import {name}"
    alone = PROGRAM.format(imports=imports, before=before, call=call)
    path = tmp_path / "program.py"
    path.write_text(alone)
    assert call.partition("(")[0].rpartition(".")[2] in str(lint_paths([path]).findings)
    path.write_text(alone.replace("if dist.get_rank() == 0:", "if True:"))
    assert [found for found in lint_paths([path]).findings if found.rule != "device-not-set"] == []
