"""Checkpoints that real frameworks wrote and load without a word, though they are of two saves."""

from __future__ import annotations

import shutil

import pytest
import torch
import torch.distributed.checkpoint as dcp

from holdfast.facts.checkpoints import formats
from holdfast.facts.checkpoints.examining.survey import examine
from holdfast.rules.checkpoints.verify import judge
from tests.saved.making import made, shared_store

pytestmark = pytest.mark.slow


def claims_of(path):
    return judge(examine(formats.read(path)))


def test_dcp_saved_over_while_a_rank_died(tmp_path_factory):
    folder = made(shared_store(tmp_path_factory), "interrupted", "interrupted")
    loaded = {"w": torch.zeros(64, 32)}
    with pytest.warns(UserWarning, match="single process"):
        dcp.load(loaded, checkpoint_id=folder / "torn", no_dist=True)
    assert loaded["w"].unique().tolist() == [1, 2]  # torch takes the mixture
    (claim,) = claims_of(folder / "torn")
    assert (claim.cause, claim.level) == ("checkpoint-half-written", "error")
    assert claim.message.startswith("__0_0.distcp of ")
    assert claims_of(folder / "whole") == ()


@pytest.mark.parametrize("dtype", [pytest.param("fp32", marks=pytest.mark.matrix), "bf16"])
def test_zero_with_one_ranks_shard_of_another_save(tmp_path_factory, tmp_path, dtype):
    options = ["--stage", "2", "--dtype", dtype]
    folder = made(shared_store(tmp_path_factory), f"zero2-{dtype}-torn", "deepspeed_zero", *options, ranks=2)
    assert claims_of(folder / "checkpoint") == ()
    shutil.copytree(folder / "checkpoint", tmp_path / "torn")
    (shard,) = (tmp_path / "torn" / "global_step3").glob("*rank_1_mp_rank_00_optim_states.pt")
    state = torch.load(shard, weights_only=False)
    state["optimizer_state_dict"]["single_partition_of_fp32_groups"][0].data.add_(0.01)  # as of another run
    torch.save(state, shard)
    claims = claims_of(tmp_path / "torn")
    assert ("checkpoint-copies-differ", "error") in [(claim.cause, claim.level) for claim in claims]


def test_zero_without_a_ranks_shard(tmp_path_factory, tmp_path):
    options = ["--stage", "2", "--dtype", "bf16"]
    folder = made(shared_store(tmp_path_factory), "zero2-bf16-torn", "deepspeed_zero", *options, ranks=2)
    shutil.copytree(folder / "checkpoint", tmp_path / "lacks")
    shutil.copytree(tmp_path / "lacks" / "global_step3", tmp_path / "lacks" / "global_step2")
    (shard,) = (tmp_path / "lacks" / "global_step3").glob("*rank_1_mp_rank_00_optim_states.pt")
    shard.unlink()
    first = claims_of(tmp_path / "lacks")[0]
    assert (first.cause, first.subject.rank) == ("checkpoint-half-written", 1)
    assert "latest` names it all the same, while global_step2 is whole" in first.message
