"""Suggested changes for an out-of-memory run, from its setup and its log or snapshot."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from holdfast.cli import root
from holdfast.core.errors import InvalidValue, MissingFile
from tests.unit.diagnose import memory_snapshot_factory

LOG = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has "
    "a total capacity of "
    "79.15 GiB of which 1.20 GiB is free. Including non-PyTorch memory, this process has 77.90 "
    "GiB memory in use. Of "
    "the allocated memory {held} GiB is allocated by PyTorch, and {idle} GiB is reserved by "
    "PyTorch but unallocated.\n"
)
RUN = ["llama3.1-8b", "--on", "8 H100", "--sequence", "8192"]


def run_failed_plan(*arguments):
    return CliRunner().invoke(
        root, ["plan", *RUN, *arguments], catch_exceptions=False, standalone_mode=False
    )


def test_log_gives_missing_bytes_and_plan_suggests_changes(tmp_path):
    (tmp_path / "train.log").write_text(LOG.format(held="74.80", idle="0.60"))
    result = run_failed_plan("--micro-batch", "2", "--failed", str(tmp_path))
    assert result.return_value == 1
    text = " ".join(result.output.split())
    assert "tensors at the failure: 76.8 GiB" in text
    assert "at least 819.2 MiB were missing" in text
    assert "checkpoint activations of whole layers: 91.6 GiB less" in text
    assert ", sufficient (cost: " in text
    assert "first" not in text.partition("changes")[0].split("were missing")[1]


def test_fragmentation_is_fixed_first(tmp_path):
    (tmp_path / "train.log").write_text(LOG.format(held="66.20", idle="9.00"))
    assert "Let the allocator's segments grow" in run_failed_plan("--failed", str(tmp_path)).output


def test_snapshot_gives_json_numbers(tmp_path):
    (tmp_path / "oom_rank_3.pickle").write_bytes(memory_snapshot_factory.full())
    document = json.loads(
        run_failed_plan("--failed", str(tmp_path / "oom_rank_3.pickle"), "--json").output
    )
    assert (
        document["missing"] == 4 * memory_snapshot_factory.GIB - 300 * memory_snapshot_factory.MIB
    )
    assert document["seen"] == 83 * memory_snapshot_factory.GIB
    first = document["changes"][0]
    assert (first["what"], first["enough"]) == ("chunk the loss computation", True)
    assert first["command"].endswith("--loss chunked")
    assert document["findings"][0]["cause"] == "gpu-oom-all-ranks"


def test_logs_without_oom_are_inconclusive(tmp_path):
    (tmp_path / "train.log").write_text("[rank3]: KeyError: 'label'\n")
    result = run_failed_plan("--failed", str(tmp_path))
    assert result.return_value == 3
    assert "do not show why memory ran out" in result.output


def test_invalid_input_is_rejected(tmp_path):
    with pytest.raises(MissingFile):
        run_failed_plan("--failed", str(tmp_path / "missing"))
    (tmp_path / "train.log").write_text(LOG.format(held="74.80", idle="0.60"))
    with pytest.raises(InvalidValue, match="GPUs of one kind"):
        run_failed_plan("--on", "2 A100 + 2 V100", "--batch", "64", "--failed", str(tmp_path))
