"""What would have helped a run that was out of memory: its description, and its log or snapshot, held together."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from holdfast.cli import root
from holdfast.errors import BadValue, MissingFile
from tests.facts import snapshots as made

LOG = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of "
    "79.15 GiB of which 1.20 GiB is free. Including non-PyTorch memory, this process has 77.90 GiB memory in use. Of "
    "the allocated memory {held} GiB is allocated by PyTorch, and {idle} GiB is reserved by PyTorch but unallocated.\n"
)
RUN = ["llama3.1-8b", "--on", "8 H100", "--sequence", "8192"]


def asked(*arguments):
    return CliRunner().invoke(root, ["plan", *RUN, *arguments], catch_exceptions=False, standalone_mode=False)


def test_a_log_says_what_was_wanting_and_the_models_what_would_help(tmp_path):
    (tmp_path / "train.log").write_text(LOG.format(held="74.80", idle="0.60"))
    said = asked("--micro-batch", "2", "--failed", str(tmp_path))
    assert said.return_value == 1
    text = " ".join(said.output.split())
    assert "when it failed, 76.8 GiB would have been in tensors" in text
    assert "at least 819.2 MiB were too few" in text
    assert "recompute whole layers: 91.6 GiB less" in text
    assert "enough alone" in text
    assert "first" not in text.partition("changes")[0].split("too few")[1]


def test_where_memory_was_in_pieces_that_is_mended_first(tmp_path):
    (tmp_path / "train.log").write_text(LOG.format(held="66.20", idle="9.00"))
    assert "Let the allocator's segments grow" in asked("--failed", str(tmp_path)).output


def test_a_snapshot_does_as_well_and_programs_get_numbers(tmp_path):
    (tmp_path / "oom_rank_3.pickle").write_bytes(made.full())
    told = json.loads(asked("--failed", str(tmp_path / "oom_rank_3.pickle"), "--json").output)
    assert told["missing"] == 4 * made.GIB - 300 * made.MIB
    assert told["seen"] == 83 * made.GIB
    first = told["changes"][0]
    assert (first["what"], first["enough"]) == ("compute the loss in chunks", True)
    assert first["command"].endswith("--loss chunked")
    assert told["findings"][0]["cause"] == "gpu-oom-all-ranks"


def test_what_tells_of_no_shortage_is_not_judged(tmp_path):
    (tmp_path / "train.log").write_text("[rank3]: KeyError: 'label'\n")
    said = asked("--failed", str(tmp_path))
    assert said.return_value == 3
    assert "do not say why memory ran out" in said.output


def test_bad_input_is_one_sentence(tmp_path):
    with pytest.raises(MissingFile):
        asked("--failed", str(tmp_path / "missing"))
    (tmp_path / "train.log").write_text(LOG.format(held="74.80", idle="0.60"))
    with pytest.raises(BadValue, match="GPUs of one kind"):
        asked("--on", "2 A100 + 2 V100", "--batch", "64", "--failed", str(tmp_path))
