"""The scanner finds in any stream what searching line by line finds, whatever the engine, the chunks and the bytes."""

from __future__ import annotations

import codecs
import io
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.facts.logs import engines, scan
from holdfast.facts.logs.scan import MOST_LINE_BYTES, Hit, Scanner
from holdfast.facts.logs.signals import ROWS

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
#: Bytes in which the rows above are likely, with all that separates and confuses.
PARTS = [b"Error", b"a", b"b", b"x", b"y", b"z", b"zz", b"WATCHdog", "é".encode(), b"rank 12", b" ", b"\t", b"\x0b"]
PARTS += [b"\n", b"\n\n", b"\r", b"\r\n", b"\0", b"\xff", b"\xc3", b"\x1b[31m"]
LOGS = (
    st.lists(st.sampled_from(PARTS) | st.binary(max_size=3), max_size=60)
    .map(b"".join)
    .filter(lambda data: not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)))  # read as what they mark
)
#: One line of each row, or nearly.
SAID = [
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


class Dribble(io.RawIOBase):
    """A stream that gives what it likes, as pipes and sockets do."""

    def __init__(self, data: bytes, seed: int) -> None:
        self._inner, self._random = io.BytesIO(data), random.Random(seed)

    def read(self, size: int = -1) -> bytes:
        return self._inner.read(min(size, self._random.randint(1, 9)))


@pytest.fixture(params=["re", "hyperscan"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "hyperscan":
        pytest.importorskip("hyperscan")
    monkeypatch.setattr(scan, "SMALL_BYTES", -1 if request.param == "hyperscan" else 1 << 60)


def hits(data: bytes, table: tuple[engines.Pattern, ...] = SMALL_TABLE) -> list[Hit]:
    return list(Scanner(table).scan(io.BytesIO(data)))


def by_hand(data: bytes, table: tuple[engines.Pattern, ...] = SMALL_TABLE) -> list[Hit]:
    """What is to be found where no line is too long, in the plainest way."""
    each, found, offset = engines._compiled(table), [], 0
    for number, line in enumerate(io.BytesIO(data), 1):
        if rows := tuple(row for row, expression in enumerate(each) if expression.search(line)):
            found.append(Hit(number, offset, line, rows))
        offset += len(line)
    return found


@pytest.mark.parametrize("small", [1 << 60, -1])
@settings(deadline=None)  # the first example compiles the table
@given(data=LOGS, chunk=st.integers(1, 40), seed=st.integers(0, 9))
def test_any_bytes_in_any_chunks(small: int, data: bytes, chunk: int, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "CHUNK_BYTES", chunk)
        patch.setattr(scan, "SMALL_BYTES", small)
        scanner = Scanner(SMALL_TABLE)
        found = list(scanner.scan(Dribble(data, seed)))
    lines = list(io.BytesIO(data))
    told = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    assert found == by_hand(data)
    assert (scanner.lines, scanner.bytes) == (len(lines), len(data))
    assert scanner.last == (told[-1] if told else None)


@pytest.mark.parametrize("small", [1 << 60, -1])
@settings(deadline=None)  # the first example compiles the table
@given(data=LOGS, chunk=st.integers(1, 40), most=st.integers(1, 12))
def test_cut_lines_do_not_depend_on_the_chunks(small: int, data: bytes, chunk: int, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "SMALL_BYTES", small)
        patch.setattr(scan, "MOST_LINE_BYTES", most)
        at_once = hits(data)
        patch.setattr(scan, "CHUNK_BYTES", chunk)
        scanner = Scanner(SMALL_TABLE)
        assert list(scanner.scan(io.BytesIO(data))) == at_once
        blocks = list(scan._blocks(iter([data])))
    assert b"".join(blocks) == data
    assert all(len(hit.line) <= most and data[hit.offset :].startswith(hit.line) for hit in at_once)
    assert all(hit.number == data.count(b"\n", 0, hit.offset) + 1 for hit in at_once)


def generated(seed: int, lines: int) -> Iterator[bytes]:
    """A log in which every row's words turn up, whole, cut, glued together, and far from the start of a line."""
    rng = random.Random(seed)
    for _ in range(lines):
        words = [rng.choice(SAID) for _ in range(rng.randint(0, 3))]
        words = [word[: rng.randint(1, len(word))] if rng.random() < 0.2 else word for word in words]
        line = b"[rank%d]: " % rng.randrange(64) * rng.randint(0, 1) + rng.choice([b" ", b"\r", b": "]).join(words)
        yield line + rng.choice([b"\n", b"\n", b"\n", b"\r\n", b""])


@pytest.mark.parametrize("seed", range(3))
def test_both_engines_find_the_same_with_the_real_table(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hyperscan")
    data = b"".join(generated(seed, 400))
    slowly = hits(data, TABLE)
    monkeypatch.setattr(scan, "SMALL_BYTES", -1)
    quickly = hits(data, TABLE)
    assert quickly == slowly == by_hand(data, TABLE)
    assert len({row for hit in slowly for row in hit.rows}) > 15


@pytest.mark.slow
def test_hyperscan_knows_every_expression_of_the_table() -> None:
    pytest.importorskip("hyperscan")
    unknown = [expression for name, expression, case in TABLE if engines._database(((name, expression, case),)) is None]
    assert unknown == []


@pytest.mark.parametrize("expression", [r"(?<=a)b", r"(a)\1", r"a*"])
def test_what_hyperscan_does_not_know_is_searched_with_re(expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "SMALL_BYTES", -1)
    table = (*SMALL_TABLE, ("hard", expression, False))
    assert hits(b"ab\naa\n", table) == by_hand(b"ab\naa\n", table)


def test_without_hyperscan_the_same_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hyperscan", None)
    monkeypatch.setattr(scan, "SMALL_BYTES", -1)
    engines._database.cache_clear()
    try:
        assert engines.by_hyperscan(SMALL_TABLE) is None
        assert hits(b"x Error\n\nzzz") == by_hand(b"x Error\n\nzzz")
    finally:
        engines._database.cache_clear()


@pytest.mark.usefixtures("engine")
def test_a_line_that_never_ends_is_searched_in_pieces() -> None:
    data = b"ok\n" + b"." * MOST_LINE_BYTES + b"Error here" + b"." * 3 * MOST_LINE_BYTES + b"\nError\n"
    found = hits(data)
    assert [(hit.number, hit.offset) for hit in found] == [(2, 3 + MOST_LINE_BYTES), (3, data.rindex(b"Error"))]
    assert len(found[0].line) == MOST_LINE_BYTES


@pytest.mark.usefixtures("engine")
def test_a_progress_bar_is_cut_between_its_pictures() -> None:
    bar = b"".join(b"\r%5d%%|####      | 3/25 [00:08<01:00]" % number for number in range(4000))
    (hit,) = hits(bar + b"\rRuntimeError: it broke\r" + bar + b"\n")
    assert b"\rRuntimeError: it broke\r" in b"\r" + hit.line
    assert hit.number == 1


@pytest.mark.usefixtures("engine")
def test_the_hole_of_a_truncated_log_is_cut_off() -> None:
    (hit,) = hits(b"\0" * (3 * MOST_LINE_BYTES + 5) + b"an Error\n")
    assert (hit.number, hit.line.lstrip(b"\0")) == (1, b"an Error\n")
    assert len(hit.line) < MOST_LINE_BYTES


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_wide_text_with_a_mark_is_searched_as_utf8(encoding: str, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "CHUNK_BYTES", 7)
    text = ending.join(["\ufeff- well 训练", "an Error 完", "rank 7 😀", ""])
    found = hits(text.encode(encoding))
    assert [(hit.number, hit.line.decode()) for hit in found] == [
        (2, f"an Error 完{ending}"),
        (3, f"rank 7 😀{ending}"),
    ]
    assert found[0].offset == len(f"- well 训练{ending}".encode())


def test_wide_text_that_is_broken_is_read_on() -> None:
    data = "\ufeffan Error\n".encode("utf-16-le") + b"\x00\xd8" + "\nrank 3\n".encode("utf-16-le") + b"\x41"
    assert [hit.number for hit in hits(data)] == [1, 3]


@pytest.mark.usefixtures("engine")
def test_one_scanner_for_many_streams() -> None:
    scanner = Scanner(SMALL_TABLE)
    for lines in (3, 1, 0):
        assert [hit.number for hit in scanner.scan(io.BytesIO(b"Error\n" * lines))] == list(range(1, lines + 1))
        assert (scanner.lines, scanner.bytes, bool(scanner.last)) == (lines, 6 * lines, lines > 0)


def test_sparse_rows_are_searched_at_both_ends_and_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("CHUNK_BYTES", 100), ("FIRST_BYTES", 150), ("LAST_BYTES", 250), ("SAMPLE_BYTES", 15)):
        monkeypatch.setattr(scan, name, size)
    monkeypatch.setattr(scan, "SAMPLE_EVERY_BYTES", 1000)
    data = b"".join(b"rank %04d\n" % number for number in range(495)) + b"an Error\n" + b"rank %04d\n" % 0
    data = data[:2000] + b"Error" + data[2005:]
    every = by_hand(data)
    scanner = Scanner(SMALL_TABLE, sparse={"field"})
    found = list(scanner.scan(io.BytesIO(data)))
    quiet, chatty = [hit for hit in found if 0 in hit.rows], [hit.offset for hit in found if 5 in hit.rows]
    assert [hit.offset for hit in quiet] == [hit.offset for hit in every if 0 in hit.rows] != []
    first, last = [at for at in chatty if at < 500], [at for at in chatty if at > len(data) - 500]
    assert first == [hit.offset for hit in every if hit.offset < len(first) * 10]
    assert 150 <= len(first) * 10 <= 250
    assert last == [hit.offset for hit in every if 5 in hit.rows][-len(last) :]
    assert 240 <= len(last) * 10 <= 360
    assert len(first) + len(last) < len(chatty) <= len(first) + len(last) + 10
    assert found == [hit for hit in every if hit in found]
    assert (scanner.lines, scanner.bytes) == (data.count(b"\n"), len(data))


def test_of_many_logs_the_later_ones_are_searched_for_sparse_rows_at_their_ends_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan, "HALVED_EVERY", 100)
    data = b"".join(b"rank %04d\n" % number for number in range(500)) + b"an Error\n" + b"rank %04d\n" % 0
    scanner = Scanner(SMALL_TABLE, sparse={"field"})
    found = [list(scanner.scan(io.BytesIO(data))) for _ in range(20)]
    assert len(found[0]) == 502
    assert [hit.line for hit in found[-1] if 0 in hit.rows] == [b"an Error\n"]
    near = {hit.offset for hit in found[-1]}
    assert {0, len(data) - 10} <= near
    assert all(at < 520 or at > len(data) - 530 for at in near)
    assert all(data[hit.offset :].startswith(hit.line) for hit in found[-1])
    assert [hit.number for hit in found[-1]] == [data.count(b"\n", 0, hit.offset) + 1 for hit in found[-1]]


@pytest.mark.slow
@pytest.mark.usefixtures("engine")
def test_memory_does_not_grow_with_the_log() -> None:
    script = (
        "import io, resource, sys; from holdfast.facts.logs import scan; scan.SMALL_BYTES = int(sys.argv[1])\n"
        "class Endless(io.RawIOBase):\n"
        "    left = 48\n"
        "    def read(self, size=-1):\n"
        "        self.left -= 1\n"
        "        line = b'z' * 99 + (b'z' if sys.argv[2] == 'endless' else b'\\n')\n"
        "        return (line * (size // 100 + 1))[:size] if self.left >= 0 else b''\n"
        "scanner = scan.Scanner([('z', 'z+', False)])\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "count = sum(1 for _ in scanner.scan(Endless())); assert count, count\n"
        "print(scanner.bytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    for ending in ("endless", "lines"):
        command = [sys.executable, "-c", script, str(scan.SMALL_BYTES), ending]
        size, grown = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        assert int(size) > 10_000_000
        assert int(grown) < 8 * 1024  # KiB
