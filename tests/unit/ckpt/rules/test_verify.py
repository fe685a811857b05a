"""Verification of checkpoints by torch and other frameworks, intact and damaged."""

from __future__ import annotations

import json
import os
import struct

import numpy as np
import pytest
import torch

from holdfast.ckpt.contents import (
    CheckpointContents,
    CheckpointFormat,
    FileProblem,
    OptimizerState,
    Tensor,
    TensorShard,
)
from holdfast.ckpt.formats import registry
from holdfast.ckpt.rules.verify import build_verdict, judge_checkpoint
from holdfast.ckpt.verify.survey import survey_checkpoint
from holdfast.core.findings import Level, Unknown

WEIGHTS = {
    "embed.weight": torch.randn(37, 20),
    "norm.weight": torch.ones(20),
    "norm.bias": torch.zeros(20),
    "half": torch.randn(9, 9).bfloat16(),
    "count": torch.arange(5),
    "scale": torch.tensor(3.0),
}


def saved(folder, name="model.pt", **changes):
    path = folder / name
    torch.save({"model": {**WEIGHTS, **changes}, "step": 3}, path)
    return path


def survey_and_findings(path, **options):
    survey = survey_checkpoint(registry.read_checkpoint(path), **options)
    return survey, judge_checkpoint(survey)


def causes(findings):
    return [(finding.cause, str(finding.level)) for finding in findings]


def test_intact_torch_file_has_no_findings(tmp_path):
    survey, findings = survey_and_findings(saved(tmp_path))
    assert findings == ()
    assert survey.sums > len(WEIGHTS)
    assert survey.bare == ()
    answer = build_verdict(findings, survey)
    assert answer.root is None
    assert answer.unseen == ()
    assert {out.cause for out in answer.ruled_out} >= {
        "checkpoint-corrupt",
        "checkpoint-numbers-not-finite",
    }


@pytest.mark.parametrize("name", ["embed.weight", "half", "norm.bias", "count"])
def test_flipped_bit_is_detected(tmp_path, name):
    path = saved(tmp_path)
    flip(path, WEIGHTS[name])
    torch.load(path, weights_only=True)  # carries no information
    _, findings = survey_and_findings(path)
    assert causes(findings) == [("checkpoint-corrupt", "error")]
    assert name in findings[0].message


def flip(path, tensor):
    data = bytearray(path.read_bytes())
    place = bytes(data).index(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    data[place + 1] ^= 1
    path.write_bytes(data)


def test_missing_checksums_are_reported(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        path = saved(tmp_path)
    finally:
        torch.serialization.set_crc32_options(True)
    flip(path, WEIGHTS["embed.weight"])
    survey, findings = survey_and_findings(path)
    assert findings == ()
    assert survey.bare == ("",)
    assert "whether bytes changed in 1 file" in build_verdict(findings, survey).unseen[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_values_are_detected(tmp_path, value):
    bad = WEIGHTS["half"].clone()
    bad[3, 4] = value
    _, findings = survey_and_findings(saved(tmp_path, half=bad))
    assert causes(findings) == [("checkpoint-numbers-not-finite", "error")]
    assert "half (1 " in findings[0].message


def test_infinity_mask_is_accepted(tmp_path):
    mask = torch.full((8, 8), float("-inf")).triu(1)
    assert survey_and_findings(saved(tmp_path, mask=mask))[1] == ()


def test_zero_matrix_is_a_note(tmp_path):
    _, findings = survey_and_findings(saved(tmp_path, lost=torch.zeros(9, 9)))
    assert causes(findings) == [("checkpoint-weights-all-zero", "note")]
    assert "lost" in findings[0].message
    assert build_verdict(findings).root is None


def test_all_zero_weights_are_an_error(tmp_path):
    path = tmp_path / "model.pt"
    torch.save({name: torch.zeros_like(each) for name, each in WEIGHTS.items()}, path)
    assert causes(survey_and_findings(path)[1]) == [("checkpoint-weights-all-zero", "error")]


def test_quick_reads_no_values(tmp_path):
    path = saved(tmp_path, lost=torch.full((9, 9), float("nan")))
    survey, findings = survey_and_findings(path, numbers=False)
    assert findings == ()
    assert build_verdict(findings, survey).unseen


# ---- shards in files, built by hand


def shard(file, start, shape, **more):
    return TensorShard(file=file, offset=0, shape=shape, start=start, **more)


def sharded(folder, parts, shape=(40, 20), form=CheckpointFormat.DCP, **more):
    """Return a tensor ``w`` whose rows are in files: (name, first row, rows)."""
    shards = []
    for name, row, rows in parts:
        (folder / name).write_bytes(rows.astype(np.float32).tobytes())
        at = (folder / name).stat().st_mtime
        os.utime(folder / name, (at + row / 1000,) * 2)  # quick writes can have equal times
        shards.append(shard(name, (row, 0), rows.shape))
    files = {path.name: path.stat().st_size for path in folder.iterdir()}
    tensor = Tensor(name="w", dtype="float32", shape=shape, shards=tuple(shards))
    return CheckpointContents(
        format=form, root=str(folder), tensors={"w": tensor}, files=files, **more
    )


ROWS = np.random.default_rng(1).standard_normal((40, 20)).astype(np.float32)
HALVES = [("__0_0.distcp", 0, ROWS[:20]), ("__1_0.distcp", 20, ROWS[20:])]


def findings_of(contents):
    return judge_checkpoint(survey_checkpoint(contents))


def test_incomplete_shards_are_reported(tmp_path):
    assert findings_of(sharded(tmp_path, HALVES)) == ()
    findings = findings_of(sharded(tmp_path, HALVES[:1]))
    assert causes(findings) == [("checkpoint-tensor-incomplete", "error")]
    assert "400 elements missing" in findings[0].evidence[0].text


def test_missing_shard_is_the_root(tmp_path):
    problem = FileProblem(kind="missing", file="__1_0.distcp", why="it is not there", rank=1)
    survey = survey_checkpoint(sharded(tmp_path, HALVES[:1], problems=(problem,)))
    answer = build_verdict(judge_checkpoint(survey), survey)
    assert answer.root.cause == "checkpoint-corrupt"
    assert answer.root.subject.rank == 1
    assert "rank 1" in answer.root.message
    assert [finding.cause for finding in answer.consequences] == ["checkpoint-tensor-incomplete"]


def test_truncated_file_is_reported(tmp_path):
    contents = sharded(tmp_path, HALVES)
    os.truncate(tmp_path / "__1_0.distcp", 100)
    (finding,) = findings_of(contents)
    assert finding.cause == "checkpoint-corrupt"
    assert "truncated: it has 100 bytes" in finding.message


def test_differing_replicas_are_reported(tmp_path):
    other = ROWS[:20].copy()
    assert findings_of(sharded(tmp_path, [*HALVES, ("__2_0.distcp", 0, other)])) == ()
    other[3, 3] += 0.5
    (finding,) = findings_of(sharded(tmp_path, [*HALVES, ("__2_0.distcp", 0, other)]))
    assert finding.cause == "checkpoint-copies-differ"
    assert (
        "__0_0.distcp and __2_0.distcp: 1 of 400 differ, by at most 0.5" in finding.evidence[0].text
    )


def test_overlapping_shards_are_compared(tmp_path):
    parts = [("a", 0, ROWS[:30]), ("b", 20, ROWS[20:])]
    assert findings_of(sharded(tmp_path, parts)) == ()
    (finding,) = findings_of(sharded(tmp_path, [parts[0], ("b", 20, ROWS[20:] + 1)]))
    assert finding.cause == "checkpoint-copies-differ"


def test_zero_shard_of_one_rank(tmp_path):
    (finding,) = findings_of(
        sharded(tmp_path, [HALVES[0], ("__1_0.distcp", 20, np.zeros((20, 20)))])
    )
    assert causes([finding]) == [("checkpoint-weights-all-zero", "warning")]
    assert "__1_0.distcp" in finding.message


def test_differing_halves(tmp_path):
    contents = sharded(tmp_path, HALVES)
    rounded = torch.from_numpy(ROWS).bfloat16().view(torch.uint8).numpy()
    for change, expected in ((0, []), (1, [("checkpoint-copies-differ", "error")])):
        (tmp_path / "half").write_bytes(
            bytes(rounded.tobytes()[:-1]) + bytes([rounded.flat[-1] ^ change])
        )
        half = Tensor(
            name="w", dtype="bfloat16", shape=(40, 20), shards=(shard("half", (0, 0), (40, 20)),)
        )
        with_half = CheckpointContents(
            format=CheckpointFormat.ZERO2,
            root=str(tmp_path),
            tensors=contents.tensors,
            halves={"w": half},
        )
        assert causes(findings_of(with_half)) == expected


def written_at(folder, times):
    for name, at in times.items():
        os.utime(folder / name, (1_700_000_000 + at,) * 2)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"__0_0.distcp": 0, "__1_0.distcp": 0.1, ".metadata": 0.2}, []),  # one save
        (
            {"__0_0.distcp": 0, "__1_0.distcp": 2000, ".metadata": 2000.5},
            ["warning"],
        ),  # a slow rank, or no save of it
        (
            {"__0_0.distcp": 60, "__1_0.distcp": 0, ".metadata": 0.2},
            ["error"],
        ),  # overwritten, and killed
        ({"__0_0.distcp": 0, "__1_0.distcp": 3, ".metadata": 0.2}, ["error"]),
        ({"__0_0.distcp": 0, "__1_0.distcp": 0.3, ".metadata": 0.1}, []),  # copied
    ],
    ids=str,
)
def test_mixed_saves_by_times(tmp_path, times, expected):
    (tmp_path / ".metadata").write_bytes(b"")
    contents = sharded(tmp_path, HALVES)
    written_at(tmp_path, times)
    findings = findings_of(contents)
    assert causes(findings) == [("checkpoint-half-written", level) for level in expected]


def test_downloads_are_not_mixed_saves(tmp_path):
    contents = sharded(tmp_path, HALVES, form=CheckpointFormat.HUGGINGFACE)
    written_at(tmp_path, {"__0_0.distcp": 0, "__1_0.distcp": 5000})
    assert findings_of(contents) == ()


def test_optimizer_states_of_several_steps(tmp_path):
    optimizer = OptimizerState(tensors={}, numbers={"w": {"step": 7}, "b": {"step": 3}}, groups=())
    (finding,) = findings_of(sharded(tmp_path, HALVES, optimizer=optimizer, step=9))
    assert causes([finding]) == [("checkpoint-half-written", "warning")]
    assert "3 (b), 7 (w)" in finding.message


def test_mixed_files_reported_by_the_reader(tmp_path):
    problem = FileProblem(
        kind="mixed", file="__1_0.distcp", why="it is of step 7, and the others of step 3", rank=1
    )
    (finding,) = findings_of(sharded(tmp_path, HALVES, problems=(problem,)))
    assert causes([finding]) == [("checkpoint-half-written", "error")]


def test_incomplete_latest_tag(tmp_path):
    tag = tmp_path / "global_step3"
    tag.mkdir()
    (tmp_path / "latest").write_text("global_step3")
    other = tmp_path / "global_step2"
    other.mkdir()
    saved(other)
    problem = FileProblem(kind="missing", file="__1_0.distcp", why="it is not there", rank=1)
    (finding, *_) = findings_of(sharded(tag, HALVES[:1], problems=(problem,)))
    assert finding.cause == "checkpoint-half-written"
    assert "latest still points to this checkpoint; global_step2 is complete" in finding.message


def test_zeroed_scalars(tmp_path):
    header = {
        "w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "scale": {"dtype": "F32", "shape": [], "data_offsets": [16, 20]},
    }
    text = json.dumps(header).encode()
    payload = struct.pack("<5f", 1, 2, 3, 4, 0)
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + payload)
    survey, findings = survey_and_findings(tmp_path / "model.safetensors")
    assert causes(findings) == [("checkpoint-weights-all-zero", "warning")]
    assert "consolidation" in findings[0].message
    assert survey.bare


def test_transposed_and_strided_weights(tmp_path):
    whole = torch.randn(30, 7)
    part = whole[10:20, 3:5].clone()
    part[0, 0] = float("nan")
    whole[10, 3] = float("nan")
    _, findings = survey_and_findings(saved(tmp_path, turned=whole.t(), part=whole[10:20, 3:5]))
    (finding,) = findings
    assert "turned (1 NaN of 210), part (1 NaN of 20)" in finding.message


def test_checkpoint_without_tensors_is_inconclusive(tmp_path):
    path = tmp_path / "model.pt"
    torch.save({"step": 3}, path)
    (finding,) = survey_and_findings(path)[1]
    assert finding.level is Level.UNKNOWN


def test_uncompared_replicas_are_listed(tmp_path):
    contents = sharded(tmp_path, HALVES)
    os.truncate(tmp_path / "__1_0.distcp", 8)
    half = Tensor(
        name="w",
        dtype="bfloat16",
        shape=(40, 20),
        shards=(shard("__0_0.distcp", (0, 0), (40, 20)),),
    )
    survey = survey_checkpoint(
        CheckpointContents(
            format=CheckpointFormat.ZERO2,
            root=str(tmp_path),
            tensors=contents.tensors,
            halves={"w": half},
        )
    )
    assert any(isinstance(each.difference, Unknown) for each in survey.copies)
    assert any(
        "1 pair of replicas" in text
        for text in build_verdict(judge_checkpoint(survey), survey).unseen
    )
