"""The table of Xids."""

from __future__ import annotations

from collections import Counter

from holdfast.host.gpus import xids
from holdfast.host.gpus.xids import XIDS, XIDS_OF_PROGRAMS, XIDS_THAT_FOLLOW, XidKind


def test_each_number_is_listed_once() -> None:
    listed = Counter(
        number
        for texts in xids._TABLE.values()
        for words in texts.values()
        for number in xids._numbers(words)
    )
    assert [number for number, times in listed.items() if times > 1] == []
    assert listed.keys() == XIDS.keys()
    assert max(XIDS) == 173


def test_numbers_have_the_kind_of_nvidias_list() -> None:
    assert {13, 31, 43, 137} <= XIDS_OF_PROGRAMS
    assert {45} == XIDS_THAT_FOLLOW
    kinds = {
        79: XidKind.GPU,
        119: XidKind.GPU,
        48: XidKind.MEMORY,
        95: XidKind.MEMORY,
        74: XidKind.LINK,
    }
    assert {number: XIDS[number].kind for number in kinds} == kinds
    assert XIDS[146] == XIDS[74]
    assert XIDS[154].kind is XidKind.NOTE
