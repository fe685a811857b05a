"""Prefixes of log lines: rank, host and time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnose.logs import lines
from holdfast.diagnose.logs.lines import MAX_CHARACTERS, clean_line, parse_line, strip_prefixes

MESSAGE = "the disk is full"


@pytest.mark.parametrize(
    ("prefix", "rank", "host"),
    [
        ("", None, ""),
        ("[rank3]: ", 3, ""),
        ("[rank12]:", 12, ""),
        ("[Rank 7] ", 7, ""),
        ("[default5]:", 5, ""),
        ("[trainer0]: ", 0, ""),
        ("[1,17]<stderr>:", 17, ""),
        ("[node-a:6]", 6, "node-a"),
        ("node14: ", None, "node14"),
        ("(Worker pid=4021) ", None, ""),
        ("(RayTrainWorker pid=88, ip=10.1.2.3) ", None, "10.1.2.3"),
        ("[pod/train-3/pytorch] ", None, "train-3"),
        ("gpu-7:4312:4350 [2] ", None, "gpu-7"),
        ("[pod/train-3/pytorch] [rank24]: ", 24, "train-3"),
        ("[rank9]:[E711 03:04:05.123456789 ProcessGroupNCCL.cpp:632] [Rank 9] ", 9, ""),
        ("[PG ID 2 PG GUID 5(tp) Rank 4] ", 4, ""),
    ],
)
def test_prefixes_are_stripped(prefix: str, rank: int | None, host: str) -> None:
    found = strip_prefixes(prefix + MESSAGE)
    assert (found.text.strip(), found.rank, found.host) == (MESSAGE, rank, host)


@pytest.mark.parametrize(
    "stamp",
    [
        "2026-02-03 04:05:06 ",
        "[2026-02-03 04:05:06] ",
        "2026-02-03T04:05:06Z ",
        "2026-02-03T05:05:06+01:00 ",
        "2026-02-03 04:05:06,000 - ",
        "[Tue Feb  3 04:05:06 2026] ",
        "[2026-02-03 04:05:06,000] ",
    ],
)
def test_one_time_in_all_formats(stamp: str) -> None:
    found = strip_prefixes(stamp + MESSAGE)
    assert (found.text, found.time) == (MESSAGE, 1770091506.0)


def test_times_without_a_year_keep_their_order() -> None:
    early = strip_prefixes("[rank0]:[E711 03:04:05.5 ProcessGroupNCCL.cpp:632] early").time
    late = strip_prefixes("W0711 03:04:06.000000 4711 torch/distributed/run.py:793] late").time
    assert early is not None
    assert late is not None
    assert late - early == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("raw", "left"),
    [
        (b"\x1b[31merror:\x1b[0m red", "error: red"),
        (
            b"10%|#         | 1/10 [00:01<00:09,  1.0it/s]\r20%|##  | 2/10 [00:02<00:08, 1.0it/s]\rit failed\n",
            "it failed",
        ),
        (
            b"Epoch 3:  40%|####      | 40/100 [00:40<01:00,  1.00it/s, loss=2.1][rank1]: it failed",
            "[rank1]: it failed",
        ),
        (b"caf\xc3\xa9 \xff", "café \ufffd"),
    ],
)
def test_terminal_output_is_cleaned(raw: bytes, left: str) -> None:
    assert clean_line(raw) == left


def test_text_that_resembles_a_prefix_is_kept() -> None:
    assert strip_prefixes("ValueError: broken").text == "ValueError: broken"
    assert strip_prefixes("loss: 3.2").text == "loss: 3.2"


def test_the_files_rank_is_used_if_the_line_has_none() -> None:
    assert parse_line(b"it failed\n", "rank3.log", 7, rank=3).rank == 3
    assert parse_line(b"[rank1]: it failed\n", "rank3.log", 7, rank=3).rank == 1


def test_a_time_in_year_zero_is_no_time() -> None:
    assert parse_line(b"0000-01-01 00:00:00 it failed\n", "log", 1).time is None


@given(st.binary(max_size=400))
def test_arbitrary_bytes_become_a_short_line(raw: bytes) -> None:
    line = parse_line(raw, "noise", 1)
    assert len(line.text) <= MAX_CHARACTERS
    assert "\x1b[" not in line.text


def test_the_joint_pattern_has_one_group_per_prefix() -> None:
    assert lines._ANY_PREFIX.groups == len(lines._PREFIXES)


@pytest.mark.parametrize(
    "prefix",
    [
        "[trainer.loop][ERROR] - ",
        "2026-03-01 00:00:00.123 | ERROR    | trainer.loop:<module>:212 - ",
        "trainer-1  | ",
        "    12\t",
        "/logs/run-7/rank3.out:12:",
        "00:00:12 ",
        "1772323200.123456 ",
        "2026-03-01T00:00:00.123000+00:00 train/default/0f3a9c81d2 ",
        '2026-03-01T00:00:00Z {app="train", pod="train-0"} ',
        "<14>1 2026-03-01T00:00:00.000Z node-a trainer 4711 - - ",
    ],
)
def test_prefixes_of_tools_are_stripped(prefix: str) -> None:
    assert strip_prefixes(prefix + MESSAGE).text == MESSAGE
