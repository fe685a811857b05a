"""`holdfast ckpt diff`: two checkpoints of any formats."""

from __future__ import annotations

import json

import pytest
import torch

from holdfast import cli
from tests.golden.checkpoints import hostile

WEIGHTS = {"up.weight": torch.randn(30, 20), "up.bias": torch.randn(30)}


def run_diff(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        cli.main(["ckpt", "diff", *map(str, arguments)])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return end.value.code or 0, captured.out, captured.err


def saved(folder, name, weights):
    torch.save({"model": weights}, folder / name)
    return folder / name


def test_wrappers_are_ignored(capsys, tmp_path):
    a = saved(tmp_path, "a.pt", WEIGHTS)
    b = saved(
        tmp_path, "b.pt", {f"module._orig_mod.{name}": each for name, each in WEIGHTS.items()}
    )
    status, out, _ = run_diff(capsys, a, b)
    assert status == 0
    assert "identical in 2 tensors" in out


def test_map_renames_the_first(capsys, tmp_path):
    a, b = (
        saved(tmp_path, "a.pt", WEIGHTS),
        saved(tmp_path, "b.pt", {f"mlp.{n[3:]}": w for n, w in WEIGHTS.items()}),
    )
    assert run_diff(capsys, a, b)[0] == 1
    assert run_diff(capsys, a, b, "--map", "up=mlp")[0] == 0


def test_differences_in_text_and_json(capsys, tmp_path):
    a = saved(tmp_path, "a.pt", WEIGHTS)
    b = saved(tmp_path, "b.pt", {"up.weight": WEIGHTS["up.weight"] + 1, "down": torch.ones(2)})
    status, out, _ = run_diff(capsys, a, b)
    text = " ".join(out.split())
    assert status == 1
    assert "missing in B up.bias" in text
    assert "only in B down" in text
    assert "600 of 600 values differ, by at most 1" in text
    status, out, _ = run_diff(capsys, a, b, "--json")
    document = json.loads(out)
    assert (status, document["alike"], document["command"]) == (1, False, "ckpt diff")
    assert [claim["code"] for claim in document["findings"]] == ["CKPT013"]
    assert {line["kind"] for line in document["differences"]} == {"missing", "extra", "values"}
    (line,) = [line for line in document["differences"] if line["kind"] == "values"]
    assert line["max_abs"] == pytest.approx(1)
    assert line["names"] == ["up.weight"]


@pytest.mark.parametrize(
    "options", [("--no-values",), ("--only", "*.bias"), ("--atol", "2"), ("--rtol", "9")]
)
def test_options_restrict_the_comparison(capsys, tmp_path, options):
    a = saved(tmp_path, "a.pt", WEIGHTS)
    b = saved(tmp_path, "b.pt", {**WEIGHTS, "up.weight": WEIGHTS["up.weight"] + 1})
    assert run_diff(capsys, a, b)[0] == 1
    assert run_diff(capsys, a, b, *options)[0] == 0


def test_incomplete_checkpoint_is_inconclusive(capsys, tmp_path):
    file, make = hostile.BROKEN["beyond its end"]
    (tmp_path / file).write_bytes(make())
    status, out, _ = run_diff(capsys, tmp_path / file, tmp_path / file)
    assert status == 3
    assert "inconclusive" in out
    assert "truncated" in out


def test_not_a_checkpoint(capsys, tmp_path):
    a = saved(tmp_path, "a.pt", WEIGHTS)
    status, out, err = run_diff(capsys, a, tmp_path / "nothing")
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
