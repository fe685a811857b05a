"""Intake of files, folders and archives: kinds by content, reasons for skipping, hostile input."""

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import socket
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.trace_file import TraceWriter
from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind, SkippedEvidence
from holdfast.diagnose.evidence.gather import file_states, gather
from holdfast.diagnose.evidence.streams import IntakeLimits
from tests.hypothesis_profiles import examples

LOG = b"[rank0]: step 1\n[rank1]: step 1\n" * 20


def read_evidence(*paths, limits=None):
    """Return kind and content of the files by name, and why others are skipped."""
    pieces, ignored = {}, {}
    for item in gather([str(path) for path in paths], limits):
        if isinstance(item, SkippedEvidence):
            ignored[item.name] = item.why
        else:
            with item.open() as stream:
                pieces[item.name] = (item.kind, stream.read())
    return pieces, ignored


def tar(path, members, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for member, content in members:
            header = tarfile.TarInfo(member) if isinstance(member, str) else member
            if content is not None:
                header.size = len(content)
            archive.addfile(header, io.BytesIO(content) if content is not None else None)
    return path


def link(name, target, kind=tarfile.SYMTYPE):
    header = tarfile.TarInfo(name)
    header.type, header.linkname = kind, target
    return header


# Kinds


def dump_json():
    return json.dumps(
        {"entries": [{"record_id": 0, "collective_seq_id": 1}], "pg_config": {}, "version": "2.10"}
    )


CONTENTS = {
    "log": (LOG, EvidenceKind.LOG),
    "utf-16": ("rank 0: Übung\n".encode("utf-16"), EvidenceKind.LOG),
    "utf-16 without a mark": ("rank 0 waits\n".encode("utf-16-le"), EvidenceKind.LOG),
    "utf-32": ("rank 0 waits\n".encode("utf-32"), EvidenceKind.LOG),
    "latin-1": ("Größe überschritten\n" * 5).encode("latin-1"),
    "shift-jis": ("エラーが発生しました rank 3\n" * 5).encode("shift-jis"),
    "hole": b"\0" * 4000 + LOG,
    "colours": b"\x1b[31merror\x1b[0m\r\n" * 9,
    "json lines": b'{"log": "a", "stream": "stderr"}\n{"log": "b", "stream": "stderr"}\n',
    "one json line": b'{"message": "lost"}\n',
    "configuration, then a log": b'{\n "lr": 1\n}\nTraceback (most recent call last):\n',
    "dump": (pickle.dumps({"version": "2.4", "entries": []}), EvidenceKind.DUMP),
    "snapshot of GPU memory": (
        pickle.dumps({"segments": [], "device_traces": []}),
        EvidenceKind.SNAPSHOT,
    ),
    "snapshot in an older protocol": (
        pickle.dumps({"segments": []}, protocol=2),
        EvidenceKind.SNAPSHOT,
    ),
    "dump in json": (dump_json().encode(), EvidenceKind.DUMP),
    "dump in json, indented": (
        json.dumps(json.loads(dump_json()), indent=1).encode(),
        EvidenceKind.DUMP,
    ),
    "py-spy": (
        b'Process 41: python train.py\nPython v3.11.7 (/usr/bin/python3)\n\nThread 41 (idle): "MainThread"\n',
        EvidenceKind.STACKS,
    ),
    "py-spy in json": (b'[{"pid": 41, "thread_id": 7, "frames": []}]', EvidenceKind.STACKS),
    "faulthandler": (
        b'Thread 0x00007f01 (most recent call first):\n  File "a.py", line 1 in f\n',
        EvidenceKind.STACKS,
    ),
    "incident": (b'{\n  "ranks": [],\n  "groups": {}\n}', EvidenceKind.REPORT),
    "envelope": (b'{"schema":"holdfast/1","command":"diagnose"}', EvidenceKind.REPORT),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_the_kind_is_detected_from_the_content(tmp_path, name):
    case = CONTENTS[name]
    content, kind = case if isinstance(case, tuple) else (case, EvidenceKind.LOG)
    (tmp_path / "core.bin").write_bytes(content)
    pieces, ignored = read_evidence(tmp_path)
    assert ignored == {}
    assert [found for found, _ in pieces.values()] == [kind]


def test_utf16_is_returned_as_utf8(tmp_path):
    (tmp_path / "a.log").write_bytes("rank 0: Übung\n".encode("utf-16") * 2)
    pieces, _ = read_evidence(tmp_path)
    assert pieces[f"{tmp_path}/a.log"][1].decode().startswith("rank 0: Übung\n")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_text_with_a_byte_order_mark_is_returned_as_utf8(tmp_path, encoding):
    text = "- well 训练\nan Error 完\nrank 7 😀\n"
    (tmp_path / "a.log").write_bytes(f"\ufeff{text}".encode(encoding))
    pieces, _ = read_evidence(tmp_path)
    assert pieces[f"{tmp_path}/a.log"] == (EvidenceKind.LOG, text.encode())


def test_invalid_utf16_is_read_to_the_end(tmp_path):
    parts = ("\ufeffan Error\n".encode("utf-16-le"), b"\x00\xd8", "\nrank 3\n".encode("utf-16-le"))
    (tmp_path / "a.log").write_bytes(b"".join(parts) + b"\x41")
    pieces, _ = read_evidence(tmp_path)
    lines = pieces[f"{tmp_path}/a.log"][1].splitlines()
    assert (lines[0], lines[2]) == (b"an Error", b"rank 3")


def test_a_trace_file_is_detected_from_its_first_bytes(tmp_path):
    TraceWriter(tmp_path / "log.txt", rank=0, world_size=1, records=8)
    pieces, _ = read_evidence(tmp_path)
    assert pieces[f"{tmp_path}/log.txt"][0] is EvidenceKind.TRACE


NOT_EVIDENCE = {
    "junk": (bytes(range(256)) * 64, "unrecognized"),
    "empty": (b"", "empty"),
    "zeros": (bytes(5000), "unrecognized"),
    "program": (b"\x7fELF" + bytes(100), "program"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(100), "zstd"),
    "configuration": (b'{"learning_rate": 3}', "unrecognized"),
}


@pytest.mark.parametrize("name", NOT_EVIDENCE)
def test_files_that_are_not_evidence_are_skipped_with_a_reason(tmp_path, name):
    content, why = NOT_EVIDENCE[name]
    path = tmp_path / "rank0.log"
    path.write_bytes(content)
    pieces, ignored = read_evidence(path)
    assert pieces == {}
    assert why in ignored[str(path)]


# Folders


def test_files_of_a_folder_are_in_natural_order(tmp_path):
    for rank in (10, 2, 1):
        (tmp_path / f"rank{rank}").mkdir()
        (tmp_path / f"rank{rank}" / "stderr.log").write_bytes(LOG)
    assert [Path(name).parent.name for name in read_evidence(tmp_path)[0]] == [
        "rank1",
        "rank2",
        "rank10",
    ]


def test_links_pipes_sockets_and_devices_are_not_opened(tmp_path):
    (tmp_path / "a.log").write_bytes(LOG)
    (tmp_path / "out").symlink_to("/etc/hosts")
    (tmp_path / "around").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        pieces, ignored = read_evidence(tmp_path, "/dev/zero", tmp_path / "missing")
    assert list(pieces) == [f"{tmp_path}/a.log"]
    words = {
        "out": "link",
        "around": "link",
        "pipe": "pipe",
        "socket": "socket",
        "missing": "no such file",
    }
    assert all(word in ignored[f"{tmp_path}/{name}"] for name, word in words.items())
    assert "device" in ignored["/dev/zero"]
    assert len(ignored) == len(words) + 1


def test_a_named_link_is_followed_and_a_file_is_read_once(tmp_path):
    (tmp_path / "a.log").write_bytes(LOG)
    (tmp_path / "b.log").symlink_to(tmp_path / "a.log")
    pieces, ignored = read_evidence(tmp_path / "b.log", tmp_path / "a.log")
    assert list(pieces) == [f"{tmp_path}/b.log"]
    assert "under another name" in ignored[f"{tmp_path}/a.log"]


def test_source_code_is_skipped_in_a_folder_and_read_if_named(tmp_path):
    (tmp_path / "train.py").write_text("raise RuntimeError('CUDA out of memory')\n")
    assert "source code" in read_evidence(tmp_path)[1][f"{tmp_path}/train.py"]
    assert list(read_evidence(tmp_path / "train.py")[0]) == [f"{tmp_path}/train.py"]
    path = tar(tmp_path / "x", [("a/README.md", LOG)])
    assert "source code" in read_evidence(path)[1][f"{path}!a/README.md"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read any file")
def test_a_file_without_read_permission_is_skipped_with_the_reason(tmp_path):
    (tmp_path / "a.log").write_bytes(LOG)
    (tmp_path / "a.log").chmod(0)
    assert "permission" in read_evidence(tmp_path)[1][f"{tmp_path}/a.log"]


def test_files_beyond_the_limit_are_not_read(tmp_path):
    for number in range(5):
        (tmp_path / f"{number}.log").write_bytes(LOG)
    pieces, ignored = read_evidence(tmp_path, limits=IntakeLimits(files=3))
    assert len(pieces) == 3
    assert "more than 3 files" in ignored[str(tmp_path)]


def test_growth_changes_the_file_states(tmp_path):
    (tmp_path / "a.log").write_bytes(LOG)
    before = file_states([str(tmp_path), str(tmp_path / "missing")])
    with (tmp_path / "a.log").open("ab") as file:
        file.write(b"more\n")
    assert file_states([str(tmp_path)]) != before


# Archives

PACKERS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("packer", PACKERS)
def test_a_compressed_file_is_decompressed(tmp_path, packer):
    (tmp_path / "a.log").write_bytes(PACKERS[packer](LOG))
    assert read_evidence(tmp_path)[0] == {f"{tmp_path}/a.log": (EvidenceKind.LOG, LOG)}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_members_of_a_tar_are_files(tmp_path, mode):
    dump = pickle.dumps({"version": "2.4", "entries": []})
    path = tar(
        tmp_path / "x",
        [("a/1.log", LOG), ("a/dump_0", dump), ("a/2.log", LOG * 3), ("a/no", b"")],
        mode,
    )
    pieces, ignored = read_evidence(path)
    assert pieces == {
        f"{path}!a/1.log": (EvidenceKind.LOG, LOG),
        f"{path}!a/dump_0": (EvidenceKind.DUMP, dump),
        f"{path}!a/2.log": (EvidenceKind.LOG, LOG * 3),
    }
    assert ignored == {f"{path}!a/no": "empty file"}


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_members_of_a_tar_can_be_opened_again_and_later(tmp_path, mode):
    dump = pickle.dumps({"version": "2.4", "entries": []})
    path = tar(tmp_path / "x", [("1.log", LOG), ("dump_0", dump), ("2.log", LOG * 3)], mode)
    found = [item for item in gather([str(path)]) if isinstance(item, EvidenceFile)]
    assert [[piece.open().read() for _ in range(2)] for piece in found] == [
        [LOG] * 2,
        [dump] * 2,
        [LOG * 3] * 2,
    ]


def test_members_of_a_zip_are_files(tmp_path):
    path = tmp_path / "x"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/1.log", LOG)
        archive.writestr("../../evil.log", LOG)
        archive.writestr("/etc/passwd", LOG)
        odd = zipfile.ZipInfo("link")
        odd.external_attr = 0o120777 << 16
        archive.writestr(odd, "/etc/passwd")
    pieces, ignored = read_evidence(path)
    assert pieces == {f"{path}!a/1.log": (EvidenceKind.LOG, LOG)}
    assert {name.partition("!")[2]: why.split()[0:2] for name, why in ignored.items()} == {
        "../../evil.log": ["unsafe", "name:"],
        "/etc/passwd": ["unsafe", "name:"],
        "link": ["a", "link;"],
    }


def test_a_member_without_a_name_is_skipped(tmp_path):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("QQ", LOG)
        archive.writestr("1.log", LOG)
    (tmp_path / "x").write_bytes(data.getvalue().replace(b"QQ", b"\0Q"))
    pieces, ignored = read_evidence(tmp_path / "x")
    assert pieces == {f"{tmp_path}/x!1.log": (EvidenceKind.LOG, LOG)}
    assert ignored == {f"{tmp_path}/x!": "no name"}


def test_a_torch_checkpoint_is_skipped(tmp_path):
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        for name in ("data.pkl", "version", "data/0"):
            archive.writestr(f"archive/{name}", b"\x80\x02}.")
    assert "checkpoint" in read_evidence(tmp_path)[1][f"{tmp_path}/model.pt"]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_links_devices_and_unsafe_names_are_not_read(tmp_path, mode):
    members = [
        (link("soft", "/etc/passwd"), None),
        (link("hard", "a.log", tarfile.LNKTYPE), None),
        (link("null", "", tarfile.CHRTYPE), None),
        (link("pipe", "", tarfile.FIFOTYPE), None),
        ("/etc/shadow", LOG),
        ("a/../../b", LOG),
        ("a.log", LOG),
    ]
    path = tar(tmp_path / "x", members, mode)
    pieces, ignored = read_evidence(path)
    assert list(pieces) == [f"{path}!a.log"]
    assert len(ignored) == len(members) - 1


def test_nested_archives_are_opened_to_a_depth(tmp_path):
    inner = tar(tmp_path / "1", [("a.log", LOG)])
    for number in (2, 3):
        inner = tar(tmp_path / str(number), [("in", inner.read_bytes())], "w")
    pieces, ignored = read_evidence(tmp_path / "2")
    assert list(pieces) == [f"{tmp_path}/2!in!a.log"]
    assert ignored == {}
    pieces, ignored = read_evidence(tmp_path / "3")
    assert pieces == {}
    assert "nested in 2 others" in ignored[f"{tmp_path}/3!in!in"]


def test_a_decompression_bomb_is_read_up_to_the_limit(tmp_path):
    limits = IntakeLimits(free_bytes=1 << 20, ratio=10)
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"rank 0 is silent\n" * 500_000))
    (tmp_path / "b.xz").write_bytes(lzma.compress(gzip.compress(bytes(10 << 20))))
    found = list(gather([str(tmp_path)], limits))
    (piece,) = [item for item in found if isinstance(item, EvidenceFile)]
    assert len(piece.open().read()) <= (1 << 20) + (1 << 20)
    assert "bomb" in piece.read_errors[0]


def test_all_members_of_an_archive_share_its_budget(tmp_path):
    path = tar(tmp_path / "x", [(f"{number}.log", LOG * 400) for number in range(20)])
    pieces, ignored = read_evidence(path, limits=IntakeLimits(free_bytes=1 << 20, ratio=1))
    assert 0 < sum(len(content) for _, content in pieces.values()) <= 1 << 20
    assert "bomb" in ignored[str(path)]


def test_a_huge_tar_header_is_rejected(tmp_path):
    header = link("x", "", tarfile.XHDTYPE)
    header.size = 1 << 40
    (tmp_path / "x").write_bytes(header.tobuf() + bytes(4096))
    assert read_evidence(tmp_path)[0] == {}


@pytest.mark.parametrize("packer", PACKERS)
def test_a_truncated_stream_is_read_as_far_as_possible(tmp_path, packer):
    content = os.urandom(1 << 20).hex().encode()
    packed = PACKERS[packer](content)
    (tmp_path / "a.log").write_bytes(packed[: len(packed) * 3 // 4])
    (piece,) = gather([str(tmp_path)])
    part = piece.open().read()
    assert content.startswith(part)
    assert len(part) > len(content) // 4
    assert "truncated" in piece.read_errors[0]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_truncated_archive_yields_its_complete_members(tmp_path, mode):
    content = os.urandom(30_000).hex().encode()
    path = tar(tmp_path / "x", [("1.log", content), ("2.log", content), ("3.log", content)], mode)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    found = list(gather([str(path)]))
    pieces = [item for item in found if isinstance(item, EvidenceFile)]
    assert [piece.name for piece in pieces] == [f"{path}!1.log", f"{path}!2.log"]
    assert pieces[0].open().read() == content
    assert content.startswith(pieces[1].open().read())
    assert any(isinstance(item, SkippedEvidence) for item in found) or pieces[1].read_errors


def test_a_zip_without_its_end_is_skipped_with_the_reason(tmp_path):
    with zipfile.ZipFile(tmp_path / "x", "w") as archive:
        archive.writestr("a.log", LOG)
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:-40])
    assert "cannot be read" in read_evidence(tmp_path)[1][f"{tmp_path}/x"]


# Standard input


@pytest.mark.parametrize("content", [LOG, gzip.compress(LOG, mtime=0), "Ü\n".encode("utf-16") * 9])
def test_standard_input_is_a_file(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    pieces, ignored = read_evidence("-")
    assert (list(pieces), ignored) == (["standard input"], {})
    assert pieces["standard input"][0] is EvidenceKind.LOG


def test_an_archive_on_standard_input_is_unpacked(monkeypatch, tmp_path):
    path = tar(tmp_path / "x", [("a.log", LOG)])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert read_evidence("-")[0] == {"standard input!a.log": (EvidenceKind.LOG, LOG)}


# Arbitrary bytes

FIRST_BYTES = [
    b"",
    b"\x1f\x8b\x08\x00",
    b"BZh91AY&SY",
    b"\xfd7zXZ\x00",
    b"PK\x03\x04",
    b"PK\x05\x06",
    b"HOLDFAST",
    b"\x80\x04",
    b"\xff\xfe",
    b"{",
    b"[{",
    tarfile.TarInfo("a").tobuf(),
    b"PK\x05\x06" * 9,
]


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(FIRST_BYTES), st.binary(max_size=2000), st.sampled_from([None, *PACKERS]))
def test_arbitrary_bytes_do_not_raise(tmp_path, beginning, rest, packer):
    content = beginning + rest
    (tmp_path / "x").write_bytes(PACKERS[packer](content) if packer else content)
    pieces, ignored = read_evidence(tmp_path / "x")
    assert pieces or ignored


WHOLE = io.BytesIO()
with zipfile.ZipFile(WHOLE, "w", zipfile.ZIP_DEFLATED) as _archive:
    _archive.writestr("a.log", LOG)
    _archive.writestr("b.log", LOG)
_TAR = io.BytesIO()
with tarfile.open(fileobj=_TAR, mode="w") as _tar:
    for _name in ("a.log", "b.log"):
        _header = tarfile.TarInfo(_name)
        _header.size = len(LOG)
        _tar.addfile(_header, io.BytesIO(LOG))
REAL = [
    WHOLE.getvalue(),
    _TAR.getvalue(),
    gzip.compress(_TAR.getvalue()),
    lzma.compress(_TAR.getvalue()),
    bz2.compress(WHOLE.getvalue()),
]


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(REAL),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=6),
    st.data(),
)
def test_a_damaged_archive_does_not_raise(tmp_path, whole, changes, data):
    damaged = bytearray(whole)
    for place, value in changes:
        damaged[place % len(damaged)] = value
    (tmp_path / "x").write_bytes(damaged[: data.draw(st.integers(1, len(damaged)))])
    pieces, ignored = read_evidence(tmp_path / "x")
    assert pieces or ignored
