"""What is said of files that torch and others wrote, and of what became of them."""

from __future__ import annotations

import json
import os
import struct

import numpy as np
import pytest
import torch

from holdfast.facts.checkpoints import formats
from holdfast.facts.checkpoints.contents import Contents, Format, Gap, Optimizer, Piece, Tensor
from holdfast.facts.checkpoints.examining.survey import examine
from holdfast.findings import Level, Unknown
from holdfast.rules.checkpoints.verify import judge, verdict

WEIGHTS = {
    "embed.weight": torch.randn(37, 20), "norm.weight": torch.ones(20), "norm.bias": torch.zeros(20),
    "half": torch.randn(9, 9).bfloat16(), "count": torch.arange(5), "scale": torch.tensor(3.0),
}  # fmt: skip


def saved(folder, name="model.pt", **changes):
    path = folder / name
    torch.save({"model": {**WEIGHTS, **changes}, "step": 3}, path)
    return path


def found(path, **options):
    seen = examine(formats.read(path), **options)
    return seen, judge(seen)


def causes(claims):
    return [(claim.cause, str(claim.level)) for claim in claims]


def test_nothing_is_said_of_what_torch_wrote(tmp_path):
    seen, claims = found(saved(tmp_path))
    assert claims == ()
    assert seen.sums > len(WEIGHTS)
    assert seen.bare == ()
    answer = verdict(claims, seen)
    assert answer.root is None
    assert answer.unseen == ()
    assert {out.cause for out in answer.ruled_out} >= {"checkpoint-corrupt", "checkpoint-numbers-not-finite"}


@pytest.mark.parametrize("name", ["embed.weight", "half", "norm.bias", "count"])
def test_one_flipped_bit_is_found_in_what_every_loader_takes(tmp_path, name):
    path = saved(tmp_path)
    flip(path, WEIGHTS[name])
    torch.load(path, weights_only=True)  # which says nothing
    _, claims = found(path)
    assert causes(claims) == [("checkpoint-corrupt", "error")]
    assert name in claims[0].message


def flip(path, tensor):
    data = bytearray(path.read_bytes())
    place = bytes(data).index(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    data[place + 1] ^= 1
    path.write_bytes(data)


def test_who_saved_without_checksums_is_told_that_nobody_can_see(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        path = saved(tmp_path)
    finally:
        torch.serialization.set_crc32_options(True)
    flip(path, WEIGHTS["embed.weight"])
    seen, claims = found(path)
    assert claims == ()
    assert seen.bare == ("",)
    assert "whether bytes changed in 1 file" in verdict(claims, seen).unseen[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_found(tmp_path, value):
    bad = WEIGHTS["half"].clone()
    bad[3, 4] = value
    _, claims = found(saved(tmp_path, half=bad))
    assert causes(claims) == [("checkpoint-numbers-not-finite", "error")]
    assert "half (1 " in claims[0].message


def test_a_mask_of_infinities_is_meant(tmp_path):
    mask = torch.full((8, 8), float("-inf")).triu(1)
    assert found(saved(tmp_path, mask=mask))[1] == ()


def test_a_matrix_of_zeros_is_a_warning_and_a_vector_is_not(tmp_path):
    _, claims = found(saved(tmp_path, lost=torch.zeros(9, 9)))
    assert causes(claims) == [("checkpoint-weights-all-zero", "warning")]
    assert "lost" in claims[0].message
    assert verdict(claims).root is None


def test_nothing_but_zeros_is_an_error(tmp_path):
    path = tmp_path / "model.pt"
    torch.save({name: torch.zeros_like(each) for name, each in WEIGHTS.items()}, path)
    assert causes(found(path)[1]) == [("checkpoint-weights-all-zero", "error")]


def test_quick_reads_no_number_and_says_so(tmp_path):
    path = saved(tmp_path, lost=torch.full((9, 9), float("nan")))
    seen, claims = found(path, numbers=False)
    assert claims == ()
    assert verdict(claims, seen).unseen


# ---- pieces in files, made by hand


def piece(file, start, shape, **more):
    return Piece(file=file, offset=0, shape=shape, start=start, **more)


def sharded(folder, parts, shape=(40, 20), form=Format.DCP, **more):
    """A tensor ``w`` whose rows stand in files: (name, first row, its rows)."""
    pieces = []
    for name, row, rows in parts:
        (folder / name).write_bytes(rows.astype(np.float32).tobytes())
        pieces.append(piece(name, (row, 0), rows.shape))
    files = {path.name: path.stat().st_size for path in folder.iterdir()}
    tensor = Tensor(name="w", dtype="float32", shape=shape, pieces=tuple(pieces))
    return Contents(format=form, root=str(folder), tensors={"w": tensor}, files=files, **more)


ROWS = np.random.default_rng(1).standard_normal((40, 20)).astype(np.float32)
HALVES = [("__0_0.distcp", 0, ROWS[:20]), ("__1_0.distcp", 20, ROWS[20:])]


def claims_of(contents):
    return judge(examine(contents))


def test_shards_that_add_up_are_fine_and_one_too_few_is_not(tmp_path):
    assert claims_of(sharded(tmp_path, HALVES)) == ()
    claims = claims_of(sharded(tmp_path, HALVES[:1]))
    assert causes(claims) == [("checkpoint-tensor-incomplete", "error")]
    assert "400 elements in no file" in claims[0].evidence[0].text


def test_a_missing_shard_is_the_root_and_its_tensors_follow(tmp_path):
    gap = Gap(kind="missing", file="__1_0.distcp", why="it is not there", rank=1)
    seen = examine(sharded(tmp_path, HALVES[:1], gaps=(gap,)))
    answer = verdict(judge(seen), seen)
    assert answer.root.cause == "checkpoint-corrupt"
    assert answer.root.subject.rank == 1
    assert "rank 1" in answer.root.message
    assert [claim.cause for claim in answer.consequences] == ["checkpoint-tensor-incomplete"]


def test_a_file_that_was_cut_is_named_with_what_it_lacks(tmp_path):
    contents = sharded(tmp_path, HALVES)
    os.truncate(tmp_path / "__1_0.distcp", 100)
    (claim,) = claims_of(contents)
    assert claim.cause == "checkpoint-corrupt"
    assert "cut short: it has 100 bytes" in claim.message


def test_replicas_that_differ_are_told_with_both_files(tmp_path):
    other = ROWS[:20].copy()
    assert claims_of(sharded(tmp_path, [*HALVES, ("__2_0.distcp", 0, other)])) == ()
    other[3, 3] += 0.5
    (claim,) = claims_of(sharded(tmp_path, [*HALVES, ("__2_0.distcp", 0, other)]))
    assert claim.cause == "checkpoint-copies-differ"
    assert "__0_0.distcp and __2_0.distcp: 1 of 400 differ, by 0.5 at most" in claim.evidence[0].text


def test_shards_that_overlap_in_part_are_held_together(tmp_path):
    parts = [("a", 0, ROWS[:30]), ("b", 20, ROWS[20:])]
    assert claims_of(sharded(tmp_path, parts)) == ()
    (claim,) = claims_of(sharded(tmp_path, [parts[0], ("b", 20, ROWS[20:] + 1)]))
    assert claim.cause == "checkpoint-copies-differ"


def test_the_part_of_one_rank_that_is_nothing_but_zeros(tmp_path):
    (claim,) = claims_of(sharded(tmp_path, [HALVES[0], ("__1_0.distcp", 20, np.zeros((20, 20)))]))
    assert causes([claim]) == [("checkpoint-weights-all-zero", "warning")]
    assert "__1_0.distcp" in claim.message


def test_halves_that_are_not_those_of_the_weights(tmp_path):
    contents = sharded(tmp_path, HALVES)
    rounded = torch.from_numpy(ROWS).bfloat16().view(torch.uint8).numpy()
    for change, expected in ((0, []), (1, [("checkpoint-copies-differ", "error")])):
        (tmp_path / "half").write_bytes(bytes(rounded.tobytes()[:-1]) + bytes([rounded.flat[-1] ^ change]))
        half = Tensor(name="w", dtype="bfloat16", shape=(40, 20), pieces=(piece("half", (0, 0), (40, 20)),))
        with_half = Contents(format=Format.ZERO2, root=str(tmp_path), tensors=contents.tensors, halves={"w": half})
        assert causes(claims_of(with_half)) == expected


def written_at(folder, times):
    for name, at in times.items():
        os.utime(folder / name, (1_700_000_000 + at,) * 2)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"__0_0.distcp": 0, "__1_0.distcp": 0.1, ".metadata": 0.2}, []),  # one save
        ({"__0_0.distcp": 0, "__1_0.distcp": 2000, ".metadata": 2000.5}, ["warning"]),  # a slow rank, or no save of it
        ({"__0_0.distcp": 60, "__1_0.distcp": 0, ".metadata": 0.2}, ["error"]),  # saved over, and killed
        ({"__0_0.distcp": 0, "__1_0.distcp": 3, ".metadata": 0.2}, ["error"]),
        ({"__0_0.distcp": 0, "__1_0.distcp": 0.3, ".metadata": 0.1}, []),  # copied
    ],
    ids=str,
)
def test_shards_of_two_saves_are_told_by_their_times(tmp_path, times, expected):
    (tmp_path / ".metadata").write_bytes(b"")
    contents = sharded(tmp_path, HALVES)
    written_at(tmp_path, times)
    claims = claims_of(contents)
    assert causes(claims) == [("checkpoint-half-written", level) for level in expected]


def test_downloads_come_one_by_one(tmp_path):
    contents = sharded(tmp_path, HALVES, form=Format.HUGGINGFACE)
    written_at(tmp_path, {"__0_0.distcp": 0, "__1_0.distcp": 5000})
    assert claims_of(contents) == ()


def test_moments_of_several_steps(tmp_path):
    optimizer = Optimizer(tensors={}, numbers={"w": {"step": 7}, "b": {"step": 3}}, groups=())
    (claim,) = claims_of(sharded(tmp_path, HALVES, optimizer=optimizer, step=9))
    assert causes([claim]) == [("checkpoint-half-written", "warning")]
    assert "3 (b), 7 (w)" in claim.message


def test_mixed_files_that_the_reader_saw(tmp_path):
    gap = Gap(kind="mixed", file="__1_0.distcp", why="it is of step 7, and the others of step 3", rank=1)
    (claim,) = claims_of(sharded(tmp_path, HALVES, gaps=(gap,)))
    assert causes([claim]) == [("checkpoint-half-written", "error")]


def test_what_latest_names_is_not_whole_and_which_tag_is(tmp_path):
    tag = tmp_path / "global_step3"
    tag.mkdir()
    (tmp_path / "latest").write_text("global_step3")
    other = tmp_path / "global_step2"
    other.mkdir()
    saved(other)
    gap = Gap(kind="missing", file="__1_0.distcp", why="it is not there", rank=1)
    (claim, *_) = claims_of(sharded(tag, HALVES[:1], gaps=(gap,)))
    assert claim.cause == "checkpoint-half-written"
    assert "latest` names it all the same, while global_step2 is whole" in claim.message


def test_scalars_that_consolidation_lost(tmp_path):
    header = {"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
              "scale": {"dtype": "F32", "shape": [], "data_offsets": [16, 20]}}  # fmt: skip
    text = json.dumps(header).encode()
    payload = struct.pack("<5f", 1, 2, 3, 4, 0)
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + payload)
    seen, claims = found(tmp_path / "model.safetensors")
    assert causes(claims) == [("checkpoint-weights-all-zero", "warning")]
    assert "consolidation" in claims[0].message
    assert seen.bare


def test_a_transposed_weight_and_one_with_gaps_are_read(tmp_path):
    whole = torch.randn(30, 7)
    part = whole[10:20, 3:5].clone()
    part[0, 0] = float("nan")
    whole[10, 3] = float("nan")
    _, claims = found(saved(tmp_path, turned=whole.t(), part=whole[10:20, 3:5]))
    (claim,) = claims
    assert "turned (1 NaN of 210), part (1 NaN of 20)" in claim.message


def test_a_checkpoint_without_a_tensor_cannot_be_judged(tmp_path):
    path = tmp_path / "model.pt"
    torch.save({"step": 3}, path)
    (claim,) = found(path)[1]
    assert claim.level is Level.UNKNOWN


def test_what_was_not_compared_is_unseen(tmp_path):
    contents = sharded(tmp_path, HALVES)
    os.truncate(tmp_path / "__1_0.distcp", 8)
    half = Tensor(name="w", dtype="bfloat16", shape=(40, 20), pieces=(piece("__0_0.distcp", (0, 0), (40, 20)),))
    seen = examine(Contents(format=Format.ZERO2, root=str(tmp_path), tensors=contents.tensors, halves={"w": half}))
    assert any(isinstance(each.difference, Unknown) for each in seen.copies)
    assert any("1 pair of copies" in text for text in verdict(judge(seen), seen).unseen)
