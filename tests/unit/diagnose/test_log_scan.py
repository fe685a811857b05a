"""The scanner finds the same as a search line by line, for all engines, chunk sizes and bytes."""

from __future__ import annotations

import io
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.diagnose.logs import scan, search_engines
from holdfast.diagnose.logs.scan import MAX_LINE_BYTES, ScanHit, Scanner
from holdfast.diagnose.logs.signals import ROWS

TABLE = tuple((row.name, row.find or row.expression, row.ignore_case) for row in ROWS)
SMALL_TABLE = (
    ("word", r"Error\b", False),
    ("begins", r"^a+", False),
    ("ends", r"b\s*$", False),
    ("crosses", r"x[^y]{0,8}y", False),
    ("any-case", r"watchdog|é", True),
    ("field", r"rank (?P<rank>\d+)", False),
    ("repeats", r"z+", False),
)
#: Bytes likely to form the rows above, with separators and control characters.
PARTS = [
    b"Error",
    b"a",
    b"b",
    b"x",
    b"y",
    b"z",
    b"zz",
    b"WATCHdog",
    "é".encode(),
    b"rank 12",
    b" ",
    b"\t",
    b"\x0b",
]
PARTS += [b"\n", b"\n\n", b"\r", b"\r\n", b"\0", b"\xff", b"\xc3", b"\x1b[31m"]
LOGS = st.lists(st.sampled_from(PARTS) | st.binary(max_size=3), max_size=60).map(b"".join)
#: Texts of most rows.
TEXTS = [
    *(name.encode() for name, _, _ in TABLE),
    b"NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    b"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
    b"Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4)",
    b"last enqueued work: 9, last completed work: 8",
    b"srun: error: node7: task 3: Killed",
    b"Traceback (most recent call last):",
    b'  File "/job/train.py", line 3, in step',
    b"iteration 7/100 | loss is nan | grad norm: 0.1",
    b"FAILED to open LIBIBVERBS, using internal implementation",
    b"train.py failed (exitcode: -9) local_rank: 1 (pid: 77) of binary",
    "训练完成".encode(),
]


class ShortReads(io.RawIOBase):
    """A stream with short reads, as of pipes and sockets."""

    def __init__(self, data: bytes, seed: int) -> None:
        self._inner, self._random = io.BytesIO(data), random.Random(seed)

    def read(self, size: int = -1) -> bytes:
        return self._inner.read(min(size, self._random.randint(1, 9)))


@pytest.fixture(params=["re", "hyperscan"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "hyperscan":
        pytest.importorskip("hyperscan")
    use_engine(monkeypatch, request.param)


def use_engine(patch: pytest.MonkeyPatch, engine: str) -> None:
    """Search with one engine, whether a database is stored or not."""
    patch.setattr(scan, "SMALL_BYTES", -1 if engine == "hyperscan" else 1 << 60)
    if engine == "re":
        patch.setattr(scan._PatternTable, "stored_search", None)


def hits(
    data: bytes, table: tuple[search_engines.SearchPattern, ...] = SMALL_TABLE
) -> list[ScanHit]:
    return list(Scanner(table).scan(io.BytesIO(data)))


def expected_hits(
    data: bytes, table: tuple[search_engines.SearchPattern, ...] = SMALL_TABLE
) -> list[ScanHit]:
    """Return the expected hits if no line is too long."""
    each, found, offset = search_engines._compile_all(table), [], 0
    for number, line in enumerate(io.BytesIO(data), 1):
        if rows := tuple(row for row, expression in enumerate(each) if expression.search(line)):
            found.append(ScanHit(number, offset, line, rows))
        offset += len(line)
    return found


@pytest.mark.parametrize("engine", ["re", "hyperscan"])
@settings(deadline=None)  # the first example compiles the table
@given(data=LOGS, chunk=st.integers(1, 40), seed=st.integers(0, 9))
def test_arbitrary_bytes_in_arbitrary_chunks(
    engine: str, data: bytes, chunk: int, seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "CHUNK_BYTES", chunk)
        use_engine(patch, engine)
        scanner = Scanner(SMALL_TABLE)
        found = list(scanner.scan(ShortReads(data, seed)))
    lines = list(io.BytesIO(data))
    non_blank = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    assert found == expected_hits(data)
    assert (scanner.lines, scanner.bytes) == (len(lines), len(data))
    assert scanner.last == (non_blank[-1] if non_blank else None)


@pytest.mark.parametrize("engine", ["re", "hyperscan"])
@settings(deadline=None)  # the first example compiles the table
@given(data=LOGS, chunk=st.integers(1, 40), most=st.integers(1, 12))
def test_cut_lines_do_not_depend_on_the_chunks(
    engine: str, data: bytes, chunk: int, most: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        use_engine(patch, engine)
        patch.setattr(scan, "MAX_LINE_BYTES", most)
        at_once = hits(data)
        patch.setattr(scan, "CHUNK_BYTES", chunk)
        scanner = Scanner(SMALL_TABLE)
        assert list(scanner.scan(io.BytesIO(data))) == at_once
        blocks = list(scan._blocks(io.BytesIO(data)))
    assert b"".join(blocks) == data
    assert all(len(hit.line) <= most and data[hit.offset :].startswith(hit.line) for hit in at_once)
    assert all(hit.number == data.count(b"\n", 0, hit.offset) + 1 for hit in at_once)


def generated(seed: int, lines: int) -> Iterator[bytes]:
    """Yield a log with the text of every row: complete, truncated, joined, and far from the start of the line."""
    rng = random.Random(seed)
    for _ in range(lines):
        words = [rng.choice(TEXTS) for _ in range(rng.randint(0, 3))]
        words = [
            word[: rng.randint(1, len(word))] if rng.random() < 0.2 else word for word in words
        ]
        line = b"[rank%d]: " % rng.randrange(64) * rng.randint(0, 1) + rng.choice(
            [b" ", b"\r", b": "]
        ).join(words)
        yield line + rng.choice([b"\n", b"\n", b"\n", b"\r\n", b""])


@pytest.mark.parametrize("seed", range(3))
def test_both_engines_find_the_same_with_the_real_table(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("hyperscan")
    data = b"".join(generated(seed, 800))
    with monkeypatch.context() as patch:
        use_engine(patch, "re")
        with_re = hits(data, TABLE)
    use_engine(monkeypatch, "hyperscan")
    with_hyperscan = hits(data, TABLE)
    assert with_hyperscan == with_re == expected_hits(data, TABLE)
    assert len({row for hit in with_re for row in hit.rows}) > 15


def test_hyperscan_supports_every_pattern_of_the_table() -> None:
    pytest.importorskip("hyperscan")
    assert search_engines.compile_with_hyperscan(TABLE) is not None


@pytest.mark.parametrize("expression", [r"(?<=a)b", r"(a)\1", r"a*"])
def test_patterns_unsupported_by_hyperscan_are_searched_with_re(
    expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "SMALL_BYTES", -1)
    table = (*SMALL_TABLE, ("hard", expression, False))
    assert hits(b"ab\naa\n", table) == expected_hits(b"ab\naa\n", table)


def forget_databases() -> None:
    """Forget the databases of this process."""
    search_engines.compile_database.cache_clear()
    search_engines.load_database.cache_clear()


def test_hits_are_the_same_without_hyperscan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hyperscan", None)
    monkeypatch.setattr(scan, "SMALL_BYTES", -1)
    forget_databases()
    try:
        assert search_engines.compile_with_hyperscan(SMALL_TABLE) is None
        assert hits(b"x Error\n\nzzz") == expected_hits(b"x Error\n\nzzz")
    finally:
        forget_databases()


@pytest.mark.usefixtures("engine")
def test_a_too_long_line_is_searched_in_pieces() -> None:
    data = (
        b"ok\n" + b"." * MAX_LINE_BYTES + b"Error here" + b"." * 3 * MAX_LINE_BYTES + b"\nError\n"
    )
    found = hits(data)
    assert [(hit.number, hit.offset) for hit in found] == [
        (2, 3 + MAX_LINE_BYTES),
        (3, data.rindex(b"Error")),
    ]
    assert len(found[0].line) == MAX_LINE_BYTES


@pytest.mark.usefixtures("engine")
def test_a_progress_bar_is_cut_between_updates() -> None:
    bar = b"".join(b"\r%5d%%|####      | 3/25 [00:08<01:00]" % number for number in range(4000))
    (hit,) = hits(bar + b"\rRuntimeError: it broke\r" + bar + b"\n")
    assert b"\rRuntimeError: it broke\r" in b"\r" + hit.line
    assert hit.number == 1


@pytest.mark.usefixtures("engine")
def test_leading_zeros_of_a_truncated_log_are_cut_off() -> None:
    (hit,) = hits(b"\0" * (3 * MAX_LINE_BYTES + 5) + b"an Error\n")
    assert (hit.number, hit.line.lstrip(b"\0")) == (1, b"an Error\n")
    assert len(hit.line) < MAX_LINE_BYTES


@pytest.mark.usefixtures("engine")
def test_a_scanner_scans_several_streams() -> None:
    scanner = Scanner(SMALL_TABLE)
    for lines in (3, 1, 0):
        assert [hit.number for hit in scanner.scan(io.BytesIO(b"Error\n" * lines))] == list(
            range(1, lines + 1)
        )
        assert (scanner.lines, scanner.bytes, bool(scanner.last)) == (lines, 6 * lines, lines > 0)


@pytest.mark.usefixtures("engine")
def test_between_the_ends_sparse_rows_are_reported_once_per_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, size in (("CHUNK_BYTES", 100), ("FIRST_BYTES", 150), ("LAST_BYTES", 250)):
        monkeypatch.setattr(scan, name, size)
    lines = [b"rank %04d\n" % number for number in range(500)]
    lines[200] = lines[301] = b"an Error\n\n"
    data = b"".join(lines)
    every = expected_hits(data)
    scanner = Scanner(SMALL_TABLE, sparse={"field"})
    found = list(scanner.scan(io.BytesIO(data)))
    quiet = [hit.offset for hit in found if 0 in hit.rows]
    chatty = [hit.offset for hit in found if 5 in hit.rows]
    assert quiet == [hit.offset for hit in every if 0 in hit.rows] != []
    assert found == [hit for hit in every if hit in found]
    assert chatty[:15] == [10 * number for number in range(15)]
    assert chatty[-25:] == [10 * number for number in range(475, 500)]
    between = [offset for offset in chatty if 300 <= offset < 4500]
    assert all(90 <= later - offset <= 110 for offset, later in pairwise(between))
    assert (scanner.lines, scanner.bytes) == (data.count(b"\n"), len(data))


@pytest.mark.usefixtures("engine")
def test_between_the_ends_frequent_rows_are_reported_at_the_beginning_of_a_block_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, size in (("CHUNK_BYTES", 1000), ("FIRST_BYTES", 1), ("LAST_BYTES", 1)):
        monkeypatch.setattr(scan, name, size)
    monkeypatch.setattr(search_engines, "FREQUENT_BYTES", 200)
    lines = [b"." * 9 + b"\n"] * 500
    for at in (210, 250, 310, 390):  # blocks of 100 lines, the first 20 of them near the beginning
        lines[at] = b"rank 0001\n"
        lines[at + 1] = b"zz.......\n"
    scanner = Scanner(SMALL_TABLE, sparse={"field", "repeats"}, frequent={"field"})
    found = [hit.number - 1 for hit in scanner.scan(io.BytesIO(b"".join(lines)))]
    assert found == [210, 211, 310, 311]
    lines[210] = lines[310] = lines[0]
    assert [hit.number - 1 for hit in scanner.scan(io.BytesIO(b"".join(lines)))] == [211, 311]


def test_sparse_rows_of_later_logs_are_searched_only_near_their_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan, "HALVED_EVERY", 100)
    data = (
        b"".join(b"rank %04d\n" % number for number in range(500))
        + b"an Error\n"
        + b"rank %04d\n" % 0
    )
    scanner = Scanner(SMALL_TABLE, sparse={"field"})
    found = [list(scanner.scan(io.BytesIO(data))) for _ in range(20)]
    assert len(found[0]) == 502
    assert [hit.line for hit in found[-1] if 0 in hit.rows] == [b"an Error\n"]
    near = {hit.offset for hit in found[-1]}
    assert {0, len(data) - 10} <= near
    assert all(at < 520 or at > len(data) - 530 for at in near)
    assert all(data[hit.offset :].startswith(hit.line) for hit in found[-1])
    assert [hit.number for hit in found[-1]] == [
        data.count(b"\n", 0, hit.offset) + 1 for hit in found[-1]
    ]


@pytest.mark.usefixtures("engine")
def test_after_many_sparse_rows_short_logs_report_them_on_the_last_line_and_beside_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan, "MANY_SPARSE", 10)
    data = b"rank 0001\n" * 20 + b"rank 0002 Error\n" + b"rank 0003\n" * 3
    scanner = Scanner(SMALL_TABLE, sparse={"field"})
    first, second = (list(scanner.scan(io.BytesIO(data))) for _ in range(2))
    assert len(first) == 24
    assert [(hit.number, hit.line) for hit in second] == [
        (21, b"rank 0002 Error\n"),
        (24, b"rank 0003\n"),
    ]
    assert second[0].rows == first[20].rows


@pytest.mark.slow
@pytest.mark.usefixtures("engine")
def test_memory_does_not_grow_with_the_log() -> None:
    script = (
        "import io, resource, sys; from holdfast.diagnose.logs import scan; scan.SMALL_BYTES = int(sys.argv[1])\n"
        "if scan.SMALL_BYTES > 0: scan._PatternTable.stored_search = None\n"
        "class Endless(io.RawIOBase):\n"
        "    left = 32\n"
        "    def read(self, size=-1):\n"
        "        self.left -= 1\n"
        "        line = b'.' * 98 + (b'zz' if sys.argv[2] == 'endless' else b'z\\n')\n"
        "        return (line * (size // 100 + 1))[:size] if self.left >= 0 else b''\n"
        "scanner = scan.Scanner([('z', 'z+', False)])\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "count = sum(1 for _ in scanner.scan(Endless())); assert count, count\n"
        "print(scanner.bytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    for ending in ("endless", "lines"):
        command = [sys.executable, "-c", script, str(scan.SMALL_BYTES), ending]
        size, grown = subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout.split()
        assert int(size) > 10_000_000
        assert int(grown) < 8 * 1024  # KiB


@given(LOGS, st.integers(0, 6), st.data())
def test_lines_after_a_followed_row_are_hits_across_streams(
    data: bytes, most: int, draw: st.DataObject
) -> None:
    plain = {hit.number: hit for hit in expected_hits(data)}
    lines = list(io.BytesIO(data))
    expected, left = [], 0
    for number in range(1, len(lines) + 1):
        rows = plain[number].rows if number in plain else ()
        if rows or left:
            expected.append((number, lines[number - 1], rows))
        left = most if 0 in rows else max(left - 1, 0)
    cut = draw.draw(st.integers(0, len(lines)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "MAX_FOLLOWING", most)
        scanner = Scanner(SMALL_TABLE, followed={"word"})
        first_hits = list(scanner.scan(ShortReads(b"".join(lines[:cut]), 3)))
        rest = scanner.scan(ShortReads(b"".join(lines[cut:]), 4), following=scanner.following)
        found = [(hit.number, hit.line, hit.rows) for hit in first_hits]
        found += [(hit.number + cut, hit.line, hit.rows) for hit in rest]
    assert found == expected
