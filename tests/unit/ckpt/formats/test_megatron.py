"""Megatron torch_dist checkpoints, assembled with Megatron's keys and read without it."""

import json
import warnings

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

from holdfast.ckpt.contents import CheckpointFormat
from holdfast.ckpt.formats import registry
from holdfast.ckpt.formats.distributed import megatron
from holdfast.ckpt.tensor_blocks import TensorReader
from tests.golden.checkpoints.making import made, shared_store
from tests.unit.ckpt.formats.truth import bits, same_tensors, truth_of

GROUP = {"lr": 1e-2, "betas": (0.9, 0.999), "step": 5}


def save(folder, tensors, optimizer, **common):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # single-process warning
        dcp.save(tensors, checkpoint_id=folder, no_dist=True)
    torch.save(
        {"iteration": 5, "args": None, "optimizer": optimizer, **common}, folder / "common.pt"
    )
    (folder / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist"}))
    return folder


@pytest.mark.slow
def test_weights_and_moments_of_several_ranks(tmp_path_factory):
    folder = made(shared_store(tmp_path_factory), "torch_distributed", "megatron", ranks=2)
    found, truth = registry.read_checkpoint(folder / "saved"), truth_of(folder)
    assert (found.format, found.step, found.world_size, found.problems) == (
        CheckpointFormat.MEGATRON,
        3,
        2,
        (),
    )
    same_tensors(found, truth["model"])
    with TensorReader(folder / "saved") as reader:
        for name, state in truth["optimizer"].items():
            whole = reader.read_tensor(found.optimizer.tensors[name]["exp_avg"])
            assert np.array_equal(whole.reshape(-1).view(np.uint8), bits(state["exp_avg"]))
    assert found.optimizer.groups[0].options == {"lr": 1e-2, "betas": (0.9, 0.999)}


def test_fp32_weights_take_precedence(tmp_path):
    weight = torch.randn(4, 3)
    tensors = {
        "decoder.weight": weight.bfloat16(),
        "optimizer.state.fp32_param.decoder.weight": weight,
        "optimizer.state.exp_avg.decoder.weight": weight * 2,
        "decoder._extra_state/shard_0_1": b"none",
    }
    folder = save(
        tmp_path / "iter_0000005", tensors, {"0": {"optimizer": {"param_groups": [GROUP]}}}, rng=[1]
    )
    assert megatron.detect_format(folder) is CheckpointFormat.MEGATRON
    found = megatron.read_contents(folder)
    assert found.tensors["decoder.weight"].dtype == "float32"
    assert found.halves["decoder.weight"].dtype == "bfloat16"
    assert found.optimizer.numbers == {"decoder.weight": {"step": 5}}
    assert found.optimizer.groups[0].params == ("decoder.weight",)
    assert found.values["rng"] == [1]
    assert (found.step, found.notes, found.problems) == (5, (), ())


def test_buckets_are_omitted_with_a_note(tmp_path):
    tensors = {
        "w": torch.zeros(3),
        "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.exp_avg": torch.zeros(8),
    }
    found = megatron.read_contents(save(tmp_path / "it", tensors, {}))
    assert list(found.tensors) == ["w"]
    assert found.optimizer is None
    assert "buckets" in found.notes[0]


def test_malicious_common_file_is_reported(tmp_path):
    folder = save(tmp_path / "it", {"w": torch.zeros(3)}, {})
    (folder / "common.pt").write_bytes(b"none")
    (problem,) = megatron.read_contents(folder).problems
    assert (problem.kind, problem.file) == ("truncated", "common.pt")


def test_other_backends_are_not_recognized(tmp_path):
    (tmp_path / "metadata.json").write_text(json.dumps({"sharded_backend": "zarr"}))
    assert megatron.detect_format(tmp_path) is None
    (tmp_path / "metadata.json").write_text("no json")
    assert megatron.detect_format(tmp_path) is None
