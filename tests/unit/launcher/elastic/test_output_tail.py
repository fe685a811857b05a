"""Output of ranks is printed in complete lines, however it was written; torch's TailLog reads it."""

import io
import os
import subprocess
import sys
import time

import pytest
from torch.distributed.elastic.multiprocessing.tail_log import TailLog

from holdfast.launcher.elastic import output_tail
from holdfast.launcher.elastic.output_tail import whole_lines

SOON_S = 10.0


class FakeTerminal(io.StringIO):
    """A fake terminal that records each write."""

    def __init__(self):
        super().__init__()
        self.writes = []

    def write(self, text):
        self.writes.append(text)
        return super().write(text)


class PrintingRanks:
    """Two ranks that print into files, as under torchrun, and the printed output."""

    def __init__(self, folder):
        self.files = {rank: folder / f"{rank}.log" for rank in (0, 1)}
        self.terminal = FakeTerminal()
        prefixes = {rank: f"[rank{rank}]: " for rank in self.files}
        names = {rank: str(path) for rank, path in self.files.items()}
        self._tail = TailLog("worker", names, self.terminal, prefixes, interval_sec=0.01).start()

    def write(self, rank, text):
        with self.files[rank].open("a") as file:
            file.write(text)
        time.sleep(0.05)  # TailLog reads in between

    def until(self, text):
        end = time.monotonic() + SOON_S
        while text not in self.terminal.getvalue():
            assert time.monotonic() < end, self.terminal.getvalue()
            time.sleep(0.01)

    def stop(self):
        self._tail.stop()
        return self.terminal.getvalue()


@pytest.fixture
def printing(tmp_path):
    with whole_lines():
        job = PrintingRanks(tmp_path)
        yield job
        job.stop()


def print_in_pieces(job):
    job.write(0, "step  22  loss 1.17")
    job.write(1, "rank 1: done\n")
    job.write(0, "2897")
    job.write(0, "\nstep  23")
    job.write(0, "  loss 1.1\n")


def test_a_line_written_in_parts_is_printed_at_once(printing):
    print_in_pieces(printing)
    lines = printing.stop().splitlines()
    assert [line for line in lines if "rank0" in line] == [
        "[rank0]: step  22  loss 1.172897",
        "[rank0]: step  23  loss 1.1",
    ]
    assert [line for line in lines if "rank1" in line] == ["[rank1]: rank 1: done"]
    assert all(text.endswith("\n") for text in printing.terminal.writes)


def test_torch_prints_the_parts_separately(tmp_path):
    """If this fails, torch prints complete lines itself, and ``launcher/elastic/output_tail.py`` can be removed."""
    job = PrintingRanks(tmp_path)
    print_in_pieces(job)
    assert "[rank0]: step  22  loss 1.172897\n" not in job.stop()


def test_the_start_of_a_line_is_printed_after_a_while(printing, monkeypatch):
    monkeypatch.setattr(output_tail, "PARTIAL_LINE_S", 0.1)
    printing.write(0, "saving the model ... ")
    printing.until("[rank0]: saving the model ... \n")
    printing.write(0, "done\n")
    printing.until("[rank0]: done\n")


def test_an_incomplete_last_line_is_printed_at_the_end(printing):
    printing.write(0, "no newline")
    assert printing.stop() == "[rank0]: no newline\n"


def test_a_line_of_a_megabyte_is_printed_in_parts(printing):
    printing.write(0, "x" * (1 << 20) + "\nnext\n")
    printing.until("[rank0]: next\n")
    *parts, last = printing.stop().splitlines()
    assert "".join(part.removeprefix("[rank0]: ") for part in parts) == "x" * (1 << 20)
    assert last == "[rank0]: next"
    assert max(map(len, parts)) < 70_000


def test_a_job_prints_complete_lines(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "import os, sys, time\n"
        "for step in range(40):\n"
        "    for piece in ('rank ', os.environ['RANK'], f' step {step}', '\\n'):\n"
        "        os.write(1 + step % 2, piece.encode())\n"
        "        time.sleep(0.01)\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "holdfast",
            "run",
            "--standalone",
            "--nproc-per-node=2",
            "--run-dir=runs",
            str(script),
        ],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=100,
        check=False,
    )
    printed = [line for line in done.stdout.splitlines() if " step " in line]
    assert done.returncode == 0, done.stdout
    expected = [f"[rank{rank}]: rank {rank} step {step}" for rank in (0, 1) for step in range(40)]
    assert sorted(printed) == sorted(expected), done.stdout


def test_threads_end_with_the_launch_although_torch_does_not_stop_them(tmp_path):
    with whole_lines():
        job = PrintingRanks(tmp_path)
        job.write(0, "step 1\n")
    for thread in job._tail._futs:
        thread.result(timeout=SOON_S)
    assert "step 1" in job.terminal.getvalue()
