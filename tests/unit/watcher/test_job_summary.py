"""Messages between nodes: what is encoded is decoded, in a size that the number of ranks leaves."""

from __future__ import annotations

import base64
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.rank_table import GroupTiming, ProcessGroupInfo, RankState
from holdfast.watcher.job_summary import JobSummary, decode_summary, encode_summary


def summary(**groups: tuple[int, ...] | None) -> JobSummary:
    infos = {name: ProcessGroupInfo(name, ranks, "", "gloo") for name, ranks in groups.items()}
    timings = (GroupTiming("world", 8, 2.0, ()),)
    return JobSummary((RankState(rank=3),), infos, 16_384, 1.0, 2.0, timings=timings)


@given(st.lists(st.integers(min_value=0, max_value=40), max_size=12))
def test_all_members_survive(ranks: list[int]) -> None:
    sent = summary(one=tuple(ranks), unknown=None)
    assert decode_summary(encode_summary(sent)) == sent


def test_regular_groups_of_16384_ranks_take_little_space() -> None:
    sent = summary(world=tuple(range(16_384)), dp=tuple(range(5, 16_384, 8)), tp=tuple(range(8)))
    text = encode_summary(sent)
    assert len(text) < 400
    assert decode_summary(text) == sent


@pytest.mark.parametrize(
    "text",
    ["", "AAAA", "§", base64.b64encode(zlib.compress(b"no summary")).decode()],
    ids=["empty", "no zlib", "no base64", "no message"],
)
def test_damaged_messages_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - msgspec's errors are ValueErrors, too
        decode_summary(text)


def test_a_group_of_billions_is_refused() -> None:
    group = ProcessGroupInfo("world", None, runs=((0, 1, 1 << 40),))
    sent = JobSummary((), {"world": group}, 1, 0.0, 0.0)
    with pytest.raises(ValueError, match="more than"):
        decode_summary(encode_summary(sent))
