"""Logs of two hosts without an error: one stops within a measurement, the other has no output."""

from __future__ import annotations

import pytest

from holdfast.diagnose.pipeline import diagnose
from tests.unit.diagnose.test_log_rules import verdict

STARS = "*****************************************"
OMP = (
    "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid "
    "your system being overloaded, please further tune the variable for optimal performance"
)


def launcher(clock: str) -> str:
    """Return what torchrun prints at its start."""
    prefix = f"W0117 {clock}.381139 19104 torch/distributed/run.py:793]"
    return "".join(f"{prefix} {text}\n" for text in ("", STARS, OMP, STARS))


WORKER = launcher("17:43:12")
RANKS = "[rank 0] initialized, world size 4, backend gloo\n"
ONE_LINE = (
    "size       16 KB: 0.31 ms  0.10 GB/s\nsize      512 KB: 0.52 ms  0.25 GB/s\n"
    "size        1 MB: 1.20 ms  0.91 GB/s\nsize        4 MB: "
)
TWO_LINES = (
    "Testing all_reduce with 256 KB ...\n  average 512 us, 0.48 GB/s\n"
    "Testing all_reduce with 1.0 MB ...\n  average 1.4 ms, 0.71 GB/s\n"
    "Testing all_reduce with 16.0 MB ...\n"
)
TABLE = (
    "        1024           256     float     sum      -1    38.12    0.03    0.05      0\n"
    "        2048           512     float     sum      -1    40.75    0.05    0.08      0\n"
    "        4096          1024     float     sum      -1"
)


@pytest.mark.parametrize("output", [ONE_LINE, TWO_LINES, TABLE], ids=["line", "two lines", "table"])
def test_a_measurement_that_does_not_end_beside_a_silent_host(output):
    found = verdict(
        launcher("17:40:58") + RANKS + output, WORKER, names=("master.log", "worker.log")
    )
    assert found.root is not None
    assert found.root.cause == "rank-missing-collective"
    assert found.root.confidence < 0.6
    assert "master.log ends within a measurement" in found.root.message
    assert (
        "worker.log has only lines of its launcher and started 2 min 14 s later"
        in found.root.message
    )
    cited = [fact.origin.partition(":")[0] for fact in found.root.evidence]
    assert sorted(cited) == ["master.log", "worker.log"]
    assert "worker.log: it has only lines of its launcher" in found.unseen


def test_growing_messages_make_the_packet_size_a_suspect():
    found = verdict(launcher("17:40:58") + ONE_LINE, WORKER)
    assert [each.cause for each in found.suspects] == ["mtu-black-hole"]
    assert verdict(launcher("17:40:58") + TABLE, WORKER).suspects == ()


def test_a_host_that_started_at_the_same_time_is_not_late():
    root = verdict(launcher("17:43:10") + ONE_LINE, WORKER).root
    assert root is not None
    assert "later" not in root.message


@pytest.mark.parametrize(
    "logs",
    [
        (launcher("17:40:58") + ONE_LINE,),
        (launcher("17:40:58") + ONE_LINE, f"{WORKER}[rank 2] initialized\n"),
        (launcher("17:40:58") + ONE_LINE + "8.1 ms  0.4 GB/s\n", WORKER),
        (launcher("17:40:58") + TWO_LINES + "  average 9.1 ms, 0.2 GB/s\n", WORKER),
        (launcher("17:40:58") + ONE_LINE + "\nTraining complete\n", WORKER),
        (WORKER, WORKER),
    ],
    ids=["alone", "with output", "complete", "complete pair", "finished", "both silent"],
)
def test_what_is_no_stopped_measurement(logs):
    assert verdict(*logs).root is None


def test_an_error_counts_more():
    died = "Fatal Python error: Segmentation fault\n"
    root = verdict(launcher("17:40:58") + ONE_LINE + "\n" + died, WORKER).root
    assert root is not None
    assert root.cause == "segfault-in-worker"


def test_the_logs_of_one_host_alone_are_inconclusive(tmp_path):
    (tmp_path / "worker.log").write_text(WORKER)
    result = diagnose([str(tmp_path)])
    assert result.exit_status == 3
    assert any("only lines of its launcher" in text for text in result.verdict.unseen)
    (tmp_path / "master.log").write_text(launcher("17:40:58") + ONE_LINE)
    assert diagnose([str(tmp_path)]).exit_status == 1
