"""Adjustments of a restarted job: round trip, defaults, and rejection of invalid files."""

from __future__ import annotations

import pytest

from holdfast.core.adjustments import (
    MAX_BYTES,
    NO_ADJUSTMENTS,
    Adjustments,
    StepWindow,
    encode_adjustments,
    read_adjustments,
)
from holdfast.core.errors import InvalidValue

FULL = Adjustments(
    micro_batches=4,
    fewer_from=900,
    activation_checkpointing=True,
    loader_workers=0,
    resume_before=120,
    skip=(StepWindow(120, 125), StepWindow(300, 300)),
    loss_scale=0.25,
    reasons=("memory ran out at step 7",),
)


@pytest.mark.parametrize("adjustments", [NO_ADJUSTMENTS, FULL])
def test_round_trip(adjustments, tmp_path):
    (tmp_path / "a.json").write_bytes(encode_adjustments(adjustments))
    assert read_adjustments(tmp_path / "a.json") == adjustments


def test_missing_file_means_defaults(tmp_path):
    assert read_adjustments(None) is NO_ADJUSTMENTS
    assert read_adjustments(tmp_path / "absent") is NO_ADJUSTMENTS


@pytest.mark.parametrize(
    ("step", "skipped"), [(119, False), (120, True), (125, True), (126, False), (300, True)]
)
def test_step_windows_are_inclusive(step, skipped):
    assert FULL.skips(step) is skipped


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
        (b'{"schema": "holdfast/adjustments/9"}', "it has the schema 'holdfast/adjustments/9'"),
        (b" " * (MAX_BYTES + 1), "larger than 1 MiB"),
    ],
)
def test_invalid_documents_raise_one_sentence(data, why, tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(data)
    with pytest.raises(InvalidValue) as raised:
        read_adjustments(path)
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "delete the file" in str(raised.value)


def test_a_folder_at_the_path_is_an_error(tmp_path):
    with pytest.raises(InvalidValue, match="is a directory"):
        read_adjustments(tmp_path)
