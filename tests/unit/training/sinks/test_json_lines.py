"""JSON Lines are valid for any reader, also with non-finite values and on a full disk."""

from __future__ import annotations

import json
import math

import pytest

from holdfast.training.sinks import JsonLines


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def test_lines_are_read_back(tmp_path):
    file = tmp_path / "new" / "metrics.jsonl"
    sink = JsonLines(file)
    assert not file.exists()
    sink.write(3, {"loss": 0.5, "ü\n": 1e300, "nan": math.nan, "up": math.inf, "down": -math.inf})
    sink.write(2, {})
    sink.close()
    sink.close()
    reopened = JsonLines(file)
    reopened.write(4, {"loss": 0.25})
    reopened.close()
    assert [(row["step"], row["metrics"]) for row in rows(file)] == [
        (3, {"loss": 0.5, "ü\n": 1e300, "nan": "NaN", "up": "Infinity", "down": "-Infinity"}),
        (2, {}),
        (4, {"loss": 0.25}),
    ]
    assert math.isnan(float(rows(file)[0]["metrics"]["nan"]))
    assert float(rows(file)[0]["metrics"]["down"]) == -math.inf
    assert 1.7e9 < rows(file)[0]["time"] < 1e11


def test_a_partial_line_does_not_corrupt_others(tmp_path, monkeypatch):
    file = tmp_path / "metrics.jsonl"
    sink = JsonLines(file)
    sink.write(1, {"loss": 1.0})
    from holdfast.training.sinks import json_lines

    real_write = json_lines.os.write
    with monkeypatch.context() as full:
        full.setattr(
            json_lines.os, "write", lambda descriptor, data: real_write(descriptor, data[:9])
        )
        with pytest.raises(OSError, match="wrote 9 of"):
            sink.write(2, {"loss": 2.0})
    sink.write(3, {"loss": 3.0})
    sink.close()
    lines = file.read_text().splitlines()
    assert lines[1] == '{"step":2'
    assert [json.loads(line)["step"] for line in (lines[0], lines[2])] == [1, 3]
