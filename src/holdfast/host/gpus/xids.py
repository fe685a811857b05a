"""NVIDIA's Xid errors: what each reports, and whether a program or the hardware causes it.

Source: docs.nvidia.com/deploy/xid-errors and nverror.h of the open kernel modules. Reserved and
unused numbers are not in the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple


class XidKind(StrEnum):
    """Where the reason of an Xid lies; a ``NOTE`` or ``DISPLAY`` error ends no computation."""

    PROGRAM = "program"
    FOLLOWS = "follows another error"
    MEMORY = "memory"
    LINK = "link"
    GPU = "GPU"
    DISPLAY = "display or video unit"
    NOTE = "note"


class Xid(NamedTuple):
    """What an Xid reports."""

    text: str
    kind: XidKind


#: Kind -> text -> numbers; ``70-72`` is a range.
_TABLE: Mapping[XidKind, Mapping[str, str]] = {
    XidKind.PROGRAM: {
        "exception of the graphics engine": "13",
        "page fault of the GPU's memory": "31",
        "the GPU stopped processing a program": "8 43",
        "fault during a context switch": "44",
        "error of the video memory interface": "57",
        "exception of a video decoder": "68",
        "class error of the graphics engine": "69",
        "access to another GPU's memory without permission": "137",
    },
    XidKind.FOLLOWS: {"cleanup after an earlier error": "45"},
    XidKind.MEMORY: {
        "double-bit ECC error": "48",
        "bad memory recorded for row remapping or page retirement": "63",
        "bad memory could not be recorded": "64",
        "high rate of corrected ECC errors": "92",
        "contained ECC error": "94",
        "uncontained ECC error": "95",
        "unrecovered ECC error": "140 142",
        "memory retired": "156",
        "memory could not be retired": "157",
        "details of an ECC error": "171 172",
        "unstable video memory interface": "58",
        "channel retired": "160",
        "channel could not be retired": "161",
        "error in protected memory": "168",
    },
    XidKind.LINK: {
        "NVLink error": "74 144-150 155",
        "chip-to-chip link error": "121 173",
        "bus mastering is disabled": "18",
        "fatal PCIe timeout": "167",
        "non-data error of the chip-to-chip interface": "159",
    },
    XidKind.GPU: {
        "corrupted command stream": "1-4 6 7 11 25 32 80",
        "the driver failed to program the GPU": "9 12",
        "semaphore timeout or access error": "24 30",
        "timeout of the frame buffer": "26",
        "microcontroller error": "33 59 61 62 169",
        "firmware error": "37 38",
        "the GPU stopped processing": "46",
        "auxiliary power is not connected": "54",
        "illegal access by the driver": "66 67",
        "copy engine error": "70-72 75-77 85",
        "vGPU start error": "78",
        "the GPU has fallen off the bus": "79",
        "context switch timeout": "109",
        "security fault": "110",
        "the GPU system processor (GSP) does not answer": "119",
        "error of the GPU system processor (GSP)": "120",
        "power controller error": "122-124",
        "file system of the InfoROM failed": "125",
        "initialization failed": "143",
        "key rotation failed": "151",
        "fatal timeout of the GPU": "158",
        "traffic before the link was encrypted": "166",
        "interrupt in confidential-computing mode": "170",
    },
    XidKind.DISPLAY: {
        "display error": "16 19 56 81 111-118",
        "video processor error": "20-22 27-29 34-36 42 47 60 65 73 82-84 86 88 89 96-105",
    },
    XidKind.NOTE: {
        "wear limit of the InfoROM": "93",
        "test message": "106 107",
        "deep-learning accelerator": "152 153",
        "the recovery action of the GPU changed": "154",
        "power smoothing": "162-165",
    },
}


def _numbers(words: str) -> Iterator[int]:
    for word in words.split():
        first, _, last = word.partition("-")
        yield from range(int(first), int(last or first) + 1)


#: Xid by number.
XIDS: Mapping[int, Xid] = {
    number: Xid(text, kind)
    for kind, texts in _TABLE.items()
    for text, words in texts.items()
    for number in _numbers(words)
}
#: Xids that a program causes itself, and those that only follow another error.
XIDS_OF_PROGRAMS = frozenset(number for number, xid in XIDS.items() if xid.kind is XidKind.PROGRAM)
XIDS_THAT_FOLLOW = frozenset(number for number, xid in XIDS.items() if xid.kind is XidKind.FOLLOWS)
