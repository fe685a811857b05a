"""Plain pickles load; other opcodes are refused without being executed, and memory is bounded."""

from __future__ import annotations

import os
import pickle
import resource
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import native_extension, plain_pickle
from holdfast.core.plain_pickle import PickleRefused, PickleTruncated

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), 1 << 63)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
)


class Evil:
    """Creates a folder if an unsafe loader unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@given(PLAIN, st.sampled_from([2, 3, 4, 5]))
def test_plain_data_of_every_protocol_loads(value: object, protocol: int) -> None:
    assert plain_pickle.load_plain_pickle(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_code_is_refused_and_not_executed(tmp_path: Path, protocol: int) -> None:
    data = pickle.dumps({"entries": [Evil(tmp_path / "made")]}, protocol)
    with pytest.raises(PickleRefused, match="more than plain data"):
        plain_pickle.load_plain_pickle(data)
    assert not (tmp_path / "made").exists()
    pickle.loads(data)  # shows that the pickle is dangerous
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
        b"\x80\x02]p2000000000\n.",  # PUT with an arbitrary index
        b"\x80\x02\x97.",  # NEXT_BUFFER
        b"\x80\x02\x8b\x01\x00\x00\x00\x01.",  # LONG4
        b"\x80\x02C\x01a.",  # bytes
        b"\x80\x02\x8f.",  # EMPTY_SET
    ],
)
def test_other_opcodes_are_refused(data: bytes) -> None:
    with pytest.raises(PickleRefused, match=r"opcode 0x"):
        plain_pickle.load_plain_pickle(data)


def test_the_unpickler_is_safe_without_the_opcode_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(plain_pickle.NativeOpcodeCheck, "accepts", lambda *_: True)
    with pytest.raises(PickleRefused):
        plain_pickle.load_plain_pickle(pickle.dumps(Evil(tmp_path / "made")))
    with pytest.raises(PickleRefused):
        plain_pickle.load_plain_pickle(b"\x80\x02K\x01Q.")
    assert not (tmp_path / "made").exists()


@given(PLAIN, st.data())
def test_truncated_streams_raise(value: object, data: st.DataObject) -> None:
    whole = pickle.dumps(value, 2)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(PickleTruncated):
        plain_pickle.load_plain_pickle(whole[:cut])


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    try:
        plain_pickle.load_plain_pickle(b"\x80\x02" + noise)
    except (PickleRefused, PickleTruncated):
        return


def test_trailing_data_is_refused() -> None:
    with pytest.raises(PickleRefused, match="follows its end"):
        plain_pickle.load_plain_pickle(pickle.dumps({}, 2) + b"more")


def test_memory_is_bounded() -> None:
    """Six bytes of LONG_BINPUT make an unprotected unpickler fill an array of gigabytes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(PickleRefused):
        plain_pickle.load_plain_pickle(b"\x80\x02]r" + struct.pack("<I", 0xF0000000) + b".")
    with pytest.raises(PickleRefused, match="objects"):
        plain_pickle.load_plain_pickle(b"\x80\x02" + b"]" * (plain_pickle.MAX_OBJECTS + 1) + b".")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10  # KiB


def test_deep_nesting_loads() -> None:
    depth = 100_000
    found = plain_pickle.load_plain_pickle(b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b".")
    for _ in range(depth - 1):
        (found,) = found
    assert found == []


# ---- the native opcode check


@pytest.fixture(scope="module")
def native_check() -> plain_pickle.NativeOpcodeCheck:
    """Return a compiled check."""
    if native_extension.find_compiler() is None:
        pytest.skip("no C++ compiler on this machine")
    check = plain_pickle.NativeOpcodeCheck(worth_compiling=0)
    assert check.accepts(pickle.dumps({}, 2))
    return check


def python_accepts(data: bytes) -> bool:
    try:
        plain_pickle.check_opcodes(data)
    except (PickleRefused, PickleTruncated):
        return False
    return True


@given(PLAIN, st.sampled_from([2, 3, 4, 5]), st.data())
def test_both_checks_agree(
    native_check: plain_pickle.NativeOpcodeCheck, value: object, protocol: int, data: st.DataObject
) -> None:
    whole = bytearray(pickle.dumps(value, protocol))
    assert native_check.accepts(bytes(whole)) == python_accepts(bytes(whole))
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    assert native_check.accepts(changed) == python_accepts(changed)


@pytest.mark.parametrize(
    "argument", [b"", b"\x00" * 4, b"\x01\x00\x00\x00a", b"\xff\xff\xff\x7f", b"\x00\x00\x20\x00"]
)
def test_both_checks_agree_on_every_opcode(
    native_check: plain_pickle.NativeOpcodeCheck, argument: bytes
) -> None:
    for opcode in range(256):
        data = b"\x80\x02" + bytes([opcode]) + argument + b"N" * 8 + b"."
        assert native_check.accepts(data) == python_accepts(data), hex(opcode)


def test_both_checks_count_the_same_objects(native_check: plain_pickle.NativeOpcodeCheck) -> None:
    for more in (0, 1):
        data = b"\x80\x02" + b"]" * (plain_pickle.MAX_OBJECTS + more) + b"."
        assert native_check.accepts(data) == python_accepts(data) == (more == 0)


def test_without_a_compiler_python_checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(
        plain_pickle, "native_check", check := plain_pickle.NativeOpcodeCheck(worth_compiling=0)
    )
    assert plain_pickle.load_plain_pickle(pickle.dumps([1, "a"], 2)) == [1, "a"]
    assert not check.accepts(pickle.dumps([1, "a"], 2))


def test_an_unloadable_library_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    native_extension.extension_path("plain-pickle", [plain_pickle.SOURCE]).write_bytes(
        b"no library"
    )
    assert not plain_pickle.NativeOpcodeCheck().accepts(pickle.dumps({}, 2))
