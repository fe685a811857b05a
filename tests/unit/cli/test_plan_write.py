"""``holdfast plan --write``: every script runs on exactly the named ranks, and on no others."""

from __future__ import annotations

import os
import re

import pytest

from tests.golden.checkpoints.making import launched
from tests.unit.cli.test_plan import run_plan_json

ON_CPU = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}


def written(capsys, folder, *arguments):
    """Return the plan's document; the files are in ``folder``."""
    status, plan = run_plan_json(capsys, *arguments, "--write", str(folder))
    assert status == 0
    return plan


def test_files_that_would_start_fewer_ranks_are_not_written(capsys, tmp_path):
    plan = written(
        capsys, tmp_path, "llama3.1-8b", "--on", "2 x 8 A100", "--tensor", "4", "--batch", "16"
    )
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"torchtitan.toml", "torchtitan.sh", "process_groups.py"}
    refused = [text for text in plan["written"]["unsaid"] if "would start 4 of 16 ranks" in text]
    assert len(refused) == 4


def test_files_name_hosts_and_ranks_of_the_cluster(capsys, tmp_path):
    arguments = ("gpt2", "--on", "2 x 2 A100", "--sequence", "1024", "--strategy", "fsdp2")
    written(capsys, tmp_path, *arguments)
    for name in ("accelerate_fsdp2.yaml", "accelerate_deepspeed.yaml"):
        text = (tmp_path / name).read_text()
        assert "num_processes: 4\n" in text
        assert "num_machines: 2\n" in text
    assert "torchrun --nnodes 2 --nproc-per-node 2 " in (tmp_path / "train_fsdp2.py").read_text()


@pytest.mark.slow
def test_written_scripts_run_on_the_named_ranks_only(capsys, tmp_path):
    arguments = ("gpt2", "--on", "2 A100", "--sequence", "16", "--strategy", "fsdp2")
    written(capsys, tmp_path, *arguments, "--batch", "2")
    groups, train = tmp_path / "process_groups.py", tmp_path / "train_fsdp2.py"
    text = launched(groups, ranks=2, environment=ON_CPU)
    assert text.splitlines() == [f"rank {rank}: dp_shard [0, 1]" for rank in (0, 1)]
    losses = re.findall(
        r"^step \d loss", launched(train, "--steps", 2, ranks=2, environment=ON_CPU), re.MULTILINE
    )
    assert len(losses) == 2
    for script in (groups, train):
        with pytest.raises(AssertionError, match=r"^\[1\]: "):  # exit status 1
            launched(script, ranks=1, environment=ON_CPU)
