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

from holdfast import compiled
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
    monkeypatch.setattr(plain_pickle.Wall, "lets_through", lambda *_: True)
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


# ---- the first wall, compiled


@pytest.fixture(scope="module")
def wall() -> plain_pickle.Wall:
    """One that has compiled itself."""
    if compiled.compiler() is None:
        pytest.skip("no C++ compiler on this machine: the wall in Python stands alone")
    made = plain_pickle.Wall(worth_compiling=0)
    assert made.lets_through(pickle.dumps({}, 2))
    return made


def python_lets_through(data: bytes) -> bool:
    try:
        plain_pickle.look(data)
    except (Refused, Truncated):
        return False
    return True


@given(PLAIN, st.sampled_from([2, 3, 4, 5]), st.data())
def test_both_walls_let_the_same_through(
    wall: plain_pickle.Wall, value: object, protocol: int, data: st.DataObject
) -> None:
    whole = bytearray(pickle.dumps(value, protocol))
    assert wall.lets_through(bytes(whole)) == python_lets_through(bytes(whole))
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    assert wall.lets_through(changed) == python_lets_through(changed)


@pytest.mark.parametrize("argument", [b"", b"\x00" * 4, b"\x01\x00\x00\x00a", b"\xff\xff\xff\x7f", b"\x00\x00\x20\x00"])
def test_both_walls_think_the_same_of_every_opcode(wall: plain_pickle.Wall, argument: bytes) -> None:
    for opcode in range(256):
        data = b"\x80\x02" + bytes([opcode]) + argument + b"N" * 8 + b"."
        assert wall.lets_through(data) == python_lets_through(data), hex(opcode)


def test_both_walls_count_the_same_objects(wall: plain_pickle.Wall) -> None:
    for more in (0, 1):
        data = b"\x80\x02" + b"]" * (plain_pickle.MOST_OBJECTS + more) + b"."
        assert wall.lets_through(data) == python_lets_through(data) == (more == 0)


def test_without_a_compiler_the_wall_in_python_stands_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(plain_pickle, "wall", made := plain_pickle.Wall(worth_compiling=0))
    assert plain_pickle.loads(pickle.dumps([1, "a"], 2)) == [1, "a"]
    assert not made.lets_through(pickle.dumps([1, "a"], 2))


def test_a_library_that_cannot_be_loaded_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    compiled.place("plain-pickle", [plain_pickle.SOURCE]).write_bytes(b"no library")
    assert not plain_pickle.Wall().lets_through(pickle.dumps({}, 2))
