"""Checkpoints of Megatron's torch_dist form, read without Megatron; made of parts, with the keys that it writes."""

import json
import warnings

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

from holdfast.facts.checkpoints import formats
from holdfast.facts.checkpoints.contents import Format
from holdfast.facts.checkpoints.distributed import megatron
from holdfast.facts.checkpoints.pieces import Reader
from tests.facts.checkpoints.truth import bits, same_tensors, truth_of
from tests.saved.making import made, shared_store

GROUP = {"lr": 1e-2, "betas": (0.9, 0.999), "step": 5}


def save(folder, tensors, optimizer, **common):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are no other ranks
        dcp.save(tensors, checkpoint_id=folder, no_dist=True)
    torch.save({"iteration": 5, "args": None, "optimizer": optimizer, **common}, folder / "common.pt")
    (folder / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist"}))
    return folder


@pytest.mark.slow
def test_weights_and_moments_of_several_ranks_are_read(tmp_path_factory):
    folder = made(shared_store(tmp_path_factory), "megatron", "torch_distributed", "megatron", ranks=2)
    found, truth = formats.read(folder / "saved"), truth_of(folder)
    assert (found.format, found.step, found.world_size, found.gaps) == (Format.MEGATRON, 3, 2, ())
    same_tensors(found, truth["model"])
    with Reader(folder / "saved") as reader:
        for name, state in truth["optimizer"].items():
            whole = reader.whole(found.optimizer.tensors[name]["exp_avg"])
            assert np.array_equal(whole.reshape(-1).view(np.uint8), bits(state["exp_avg"]))
    assert found.optimizer.groups[0].options == {"lr": 1e-2, "betas": (0.9, 0.999)}


def test_the_32_bit_weights_are_those_that_count(tmp_path):
    weight = torch.randn(4, 3)
    tensors = {
        "decoder.weight": weight.bfloat16(), "optimizer.state.fp32_param.decoder.weight": weight,
        "optimizer.state.exp_avg.decoder.weight": weight * 2, "decoder._extra_state/shard_0_1": b"none",
    }  # fmt: skip
    folder = save(tmp_path / "iter_0000005", tensors, {"0": {"optimizer": {"param_groups": [GROUP]}}}, rng=[1])
    assert megatron.recognises(folder) is Format.MEGATRON
    found = megatron.read(folder)
    assert found.tensors["decoder.weight"].dtype == "float32"
    assert found.halves["decoder.weight"].dtype == "bfloat16"
    assert found.optimizer.numbers == {"decoder.weight": {"step": 5}}
    assert found.optimizer.groups[0].params == ("decoder.weight",)
    assert found.values["rng"] == [1]
    assert (found.step, found.notes, found.gaps) == (5, (), ())


def test_buckets_are_left_out_and_that_is_said(tmp_path):
    tensors = {"w": torch.zeros(3), "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.exp_avg": torch.zeros(8)}
    found = megatron.read(save(tmp_path / "it", tensors, {}))
    assert list(found.tensors) == ["w"]
    assert found.optimizer is None
    assert "buckets" in found.notes[0]


def test_a_malicious_common_file_is_a_gap(tmp_path):
    folder = save(tmp_path / "it", {"w": torch.zeros(3)}, {})
    (folder / "common.pt").write_bytes(b"none")
    (gap,) = megatron.read(folder).gaps
    assert (gap.kind, gap.file) == ("truncated", "common.pt")


def test_another_backend_is_not_taken_for_it(tmp_path):
    (tmp_path / "metadata.json").write_text(json.dumps({"sharded_backend": "zarr"}))
    assert megatron.recognises(tmp_path) is None
    (tmp_path / "metadata.json").write_text("no json")
    assert megatron.recognises(tmp_path) is None
