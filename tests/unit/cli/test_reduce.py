"""``holdfast diagnose --reduce``: dumps reduced on their nodes and judged together elsewhere."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.unit.cli.in_process import run_holdfast
from tests.unit.diagnose.dump_factory import written
from tests.unit.diagnose.many_dumps import Recorder, job


def holdfast(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run ``holdfast diagnose``."""
    return run_holdfast("diagnose", *arguments)


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    """Return two folders with the dumps of two ranks each; rank 2 never entered the last call."""

    def program(recorder: Recorder) -> None:
        for line in range(41, 46):
            recorder.call(line=line)
        if recorder.rank != 2:
            recorder.call("broadcast", line=50, state="scheduled")

    found = [tmp_path / "node0", tmp_path / "node1"]
    for recorder in job(4, program):
        folder = found[recorder.rank // 2]
        folder.mkdir(exist_ok=True)
        (folder / f"nccl_trace_rank_{recorder.rank}").write_bytes(written(recorder.dump()))
    return found


def test_files_of_two_nodes_give_the_verdict_of_all_dumps(
    nodes: list[Path], tmp_path: Path
) -> None:
    (nodes[1] / "train.log").write_text("step 1 loss 0.5\n")
    (nodes[1] / "nccl_trace_rank_3.old").write_bytes(b"\x80\x02junk")
    files = [tmp_path / f"{node.name}.json" for node in nodes]
    for node, file in zip(nodes, files, strict=True):
        done = holdfast(node, "--reduce", file)
        assert (done.returncode, done.stderr) == (0, "")
    assert "ranks 2-3: 2 files reduced to" in done.stdout
    assert "2 files ignored" in done.stdout
    (nodes[1] / "train.log").unlink()
    one, other = (
        json.loads(holdfast("--json", *paths).stdout)["verdict"] for paths in (nodes, files)
    )
    assert one["root"]["subject"]["rank"] == 2
    assert [text for text in other["unseen"] if "nccl_trace_rank_3.old" in text]
    assert other["root"]["message"] == one["root"]["message"]
    assert [claim["message"] for claim in other["consequences"]] == [
        claim["message"] for claim in one["consequences"]
    ]


def test_json_lists_the_written_file(nodes: list[Path], tmp_path: Path) -> None:
    content = json.loads(holdfast("--json", nodes[0], "--reduce", tmp_path / "part").stdout)
    assert (content["command"], content["ranks"], len(content["read"])) == ("diagnose", [0, 1], 2)
    assert content["bytes"] == (tmp_path / "part").stat().st_size


def test_without_a_dump_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1 loss 0.5\n")
    done = holdfast(tmp_path, "--reduce", tmp_path / "part")
    assert done.returncode == 2
    assert "no readable flight-recorder dump" in done.stderr
    assert not (tmp_path / "part").exists()


def test_it_conflicts_with_options_that_show_a_verdict(tmp_path: Path) -> None:
    done = holdfast(tmp_path, "--reduce", tmp_path / "part", "--follow")
    assert done.returncode == 2
    assert "does not diagnose" in done.stderr
