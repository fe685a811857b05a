"""Pickles of plain data are read; nothing else in a pickle is carried out, and nothing small grows large."""

from __future__ import annotations

import os
import pickle
import resource
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.facts import plain_pickle
from holdfast.facts.plain_pickle import Refused, Truncated

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 63) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
)


class Evil:
    """Makes a folder when a pickle of it is read by anybody careless."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@given(PLAIN, st.sampled_from([2, 3, 4, 5]))
def test_plain_data_of_every_protocol_is_read(value: object, protocol: int) -> None:
    assert plain_pickle.loads(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_would_run_is_refused_and_does_not_run(tmp_path: Path, protocol: int) -> None:
    data = pickle.dumps({"entries": [Evil(tmp_path / "made")]}, protocol)
    with pytest.raises(Refused, match="more than plain data"):
        plain_pickle.loads(data)
    assert not (tmp_path / "made").exists()
    pickle.loads(data)  # the proof that it would have
    assert (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02cos\nmkdir\n(X\x01\x00\x00\x00xtR.",  # GLOBAL, REDUCE
        b"\x80\x02(ios\nmkdir\n.",  # INST
        b"\x80\x02\x8c\x02os\x8c\x05mkdir\x93.",  # STACK_GLOBAL
        b"\x80\x02\x82\x01.",  # EXT1
        b"\x80\x02K\x01Q.",  # BINPERSID
        b"\x80\x02}}b.",  # BUILD
        b"\x80\x02]p2000000000\n.",  # PUT with a number of one's own
        b"\x80\x02\x97.",  # NEXT_BUFFER
        b"\x80\x02\x8b\x01\x00\x00\x00\x01.",  # LONG4
        b"\x80\x02C\x01a.",  # bytes
        b"\x80\x02\x8f.",  # EMPTY_SET
    ],
)
def test_no_other_opcode_gets_through(data: bytes) -> None:
    with pytest.raises(Refused, match=r"opcode 0x"):
        plain_pickle.loads(data)


def test_the_second_wall_stands_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plain_pickle, "_inspect", lambda _: None)
    with pytest.raises(Refused):
        plain_pickle.loads(pickle.dumps(Evil(tmp_path / "made")))
    with pytest.raises(Refused):
        plain_pickle.loads(b"\x80\x02K\x01Q.")
    assert not (tmp_path / "made").exists()


@given(PLAIN, st.data())
def test_a_cut_stream_is_truncated_and_never_read(value: object, data: st.DataObject) -> None:
    whole = pickle.dumps(value, 2)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(Truncated):
        plain_pickle.loads(whole[:cut])


@given(st.binary(max_size=200))
def test_noise_is_refused_in_our_words(noise: bytes) -> None:
    try:
        plain_pickle.loads(b"\x80\x02" + noise)
    except (Refused, Truncated):
        return


def test_what_follows_the_end_is_refused() -> None:
    with pytest.raises(Refused, match="follows its end"):
        plain_pickle.loads(pickle.dumps({}, 2) + b"more")


def test_a_small_stream_cannot_grow_large() -> None:
    """Six bytes of LONG_BINPUT make a careless unpickler fill an array of gigabytes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Refused):
        plain_pickle.loads(b"\x80\x02]r" + struct.pack("<I", 0xF0000000) + b".")
    with pytest.raises(Refused, match="objects"):
        plain_pickle.loads(b"\x80\x02" + b"]" * (plain_pickle.MOST_OBJECTS + 1) + b".")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10  # KiB


def test_a_list_in_a_list_in_a_list_is_no_deep_water() -> None:
    depth = 100_000
    found = plain_pickle.loads(b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b".")
    for _ in range(depth - 1):
        (found,) = found
    assert found == []
