"""What a restarted job does differently: written by the agent, read by every rank, and hostile input."""

from __future__ import annotations

import pytest

from holdfast.adjustments import MOST_BYTES, NONE, Adjustments, Window, encode, read
from holdfast.errors import BadValue

FULL = Adjustments(
    micro_batches=4, fewer_from=900, activation_checkpointing=True, loader_workers=0, resume_before=120,
    skip=(Window(120, 125), Window(300, 300)), loss_scale=0.25, reasons=("memory ran out at step 7",),
)  # fmt: skip


@pytest.mark.parametrize("given", [NONE, FULL])
def test_what_is_written_is_read_again(given, tmp_path):
    (tmp_path / "a.json").write_bytes(encode(given))
    assert read(tmp_path / "a.json") == given


def test_no_file_and_no_name_change_nothing(tmp_path):
    assert read(None) is NONE
    assert read(tmp_path / "absent") is NONE


@pytest.mark.parametrize(("step", "left_out"), [(119, False), (120, True), (125, True), (126, False), (300, True)])
def test_the_steps_of_a_window_are_both_left_out(step, left_out):
    assert FULL.skips(step) is left_out


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "Input data was truncated"),
        (b"\xff\xfe", "malformed"),
        (b'{"reasons": ' + b"[" * 100_000, "reasons"),
        (b'{"micro_batches": 0}', "micro_batches"),
        (b'{"micro_batches": 1e9}', "micro_batches"),
        (b'{"loss_scale": -1}', "loss_scale"),
        (b'{"skip": [{"first": -3, "last": 4}]}', "skip"),
        (b'{"schema": "holdfast/adjustments/9"}', "its form is 'holdfast/adjustments/9'"),
        (b" " * (MOST_BYTES + 1), "more than 1 MiB"),
    ],
)
def test_what_holdfast_never_wrote_is_one_sentence(data, why, tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(data)
    with pytest.raises(BadValue) as raised:
        read(path)
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "delete the file" in str(raised.value)


def test_a_folder_in_its_place_is_not_taken_for_none(tmp_path):
    with pytest.raises(BadValue, match="is a directory"):
        read(tmp_path)
