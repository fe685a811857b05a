"""The source code around a line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.core.findings import Unknown
from holdfast.core.rank_table import SourceLine
from holdfast.watcher.rules import call_sites
from holdfast.watcher.source_context import SourceContext, read_source_context
from tests.unit.watcher.rank_tables import call

PROGRAM = """\
import torch.distributed as dist

def validate(model):
    score = model()
    dist.broadcast(score, 0)            # broadcast

def train(loader, rank, device):
    main = rank == 0
    for batch in loader:
        try:
            read(batch)
        except ValueError:
            continue
        dist.all_reduce(batch)          # loop
        if main and batch.step % 10 == 0:
            validate(batch)             # call
        if device == "cuda":
            dist.barrier()              # device
    dist.all_reduce(batch)              # after
    if rank != 0:
        return
    save(batch)                         # left
    while True:
        try:
            retry()                     # retry
        except OSError:
            raise
"""


@pytest.fixture
def at(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Return the line with a mark, in a file that contains the program."""
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)

    def find(mark: str) -> SourceLine:
        line = next(
            n for n, text in enumerate(PROGRAM.splitlines(), 1) if text.endswith(f"# {mark}")
        )
        return SourceLine(str(file), line)

    return find


def around(place: SourceLine) -> SourceContext:
    """Return the context of a line; fail if it is unknown."""
    context = read_source_context(place)
    assert isinstance(context, SourceContext)
    return context


def source(*places: SourceLine) -> dict[SourceLine, SourceContext]:
    """Return the contexts of lines and of their callers."""
    found = {place: around(place) for place in places}
    for place in list(found):
        found |= {caller: around(caller) for caller in found[place].callers}
    return found


def test_function_loops_and_guards_are_found(at) -> None:  # type: ignore[no-untyped-def]
    context = around(at("call"))
    assert context.function == "train"
    assert [loop.header for loop in context.loops] == ["for batch in loader:"]
    assert [(guard.text, guard.rank_dependent) for guard in context.guards] == [
        ("if main and batch.step % 10 == 0", True)
    ]


def test_other_tests_are_not_rank_dependent(at) -> None:  # type: ignore[no-untyped-def]
    assert [guard.rank_dependent for guard in around(at("device")).guards] == [False]
    assert call_sites.rank_guard(call(1, site=at("device")), None, source(at("device"))) is None


def test_an_early_return_is_a_guard(at) -> None:  # type: ignore[no-untyped-def]
    (guard,) = around(at("left")).guards
    assert (guard.branch, guard.rank_dependent) == ("after", True)


def test_a_guard_around_the_caller_is_found(at) -> None:  # type: ignore[no-untyped-def]
    guarded = call_sites.rank_guard(call(1, site=at("broadcast")), None, source(at("broadcast")))
    assert guarded is not None
    assert guarded[0].text.startswith("if main")
    assert guarded[1] == at("call")


def test_a_call_after_the_loop_is_found(at) -> None:  # type: ignore[no-untyped-def]
    known = source(at("loop"), at("after"), at("call"))
    after, loop, inside = (call(1, site=at(mark)) for mark in ("after", "loop", "call"))
    assert call_sites.is_after_loop_of(after, loop, known)
    assert not call_sites.is_after_loop_of(loop, after, known)
    assert not call_sites.is_after_loop_of(inside, loop, known)


def test_a_handler_that_continues_swallows(at) -> None:  # type: ignore[no-untyped-def]
    handler = call_sites.exception_swallowed_in_loop(call(1, site=at("loop")), source(at("loop")))
    assert handler is not None
    assert handler.line == 12
    assert (
        call_sites.exception_swallowed_in_loop(call(1, site=at("retry")), source(at("retry")))
        is None
    )


@pytest.mark.parametrize("content", ["def broken(:\n", "\0", "x" * 10])
def test_unreadable_files_are_unknown(tmp_path: Path, content: str) -> None:
    file = tmp_path / "odd.py"
    file.write_text(content)
    assert isinstance(read_source_context(SourceLine(str(file), 5)), Unknown)
    assert isinstance(read_source_context(SourceLine(str(tmp_path / "none.py"), 1)), Unknown)


def test_deep_nesting_does_not_break_the_reader(tmp_path: Path) -> None:
    file = tmp_path / "deep.py"
    file.write_text("x = " + "(" * 5000 + ")" * 5000)
    assert isinstance(read_source_context(SourceLine(str(file), 1)), Unknown)


MORE = """\
import contextlib
import queue

@rank_zero_only
def save(model):
    dist.broadcast(model, 0)            # decorated

def run(loader, rank):
    for batch in loader:                # header
        try:
            step(batch)                 # tried
        except StopIteration:
            break
        except (ValueError, RuntimeError):
            print("left out")           # handler
    else:
        dist.barrier()                  # else
    for batch in loader:
        with contextlib.suppress(OSError):
            read(batch)
        dist.all_reduce(batch)          # suppressed
    for batch in loader:
        try:
            read(batch)
        except queue.Empty:
            break
        except OSError:
            sys.exit(1)
        def later():
            try:
                read(batch)
            except ValueError:
                pass
        dist.all_reduce(batch)          # strict
    if rank == 0:
        dist.barrier()
    elif batch:
        dist.barrier()                  # elif
    match rank:
        case 0:
            dist.barrier()              # case
        case _:
            pass
    score = validate() if rank == 0 else None    # ternary
    rank == 0 and validate()            # short
    if (                                # spread
        rank == 0
    ):
        def inner():
            dist.barrier()              # inner
"""


@pytest.fixture
def more(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Return the context of the line with a mark in the second program."""
    file = tmp_path / "more.py"
    file.write_text(MORE)
    lines = MORE.splitlines()
    return lambda mark: around(
        SourceLine(
            str(file), next(n for n, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))
        )
    )


def guards(context: SourceContext) -> list[tuple[str, str, bool]]:
    return [(guard.text, guard.branch, guard.rank_dependent) for guard in context.guards]


def test_a_rank_decorator_is_a_guard(more) -> None:  # type: ignore[no-untyped-def]
    assert guards(more("decorated")) == [("@rank_zero_only", "body", True)]


def test_the_loop_header_is_inside_and_its_else_is_not(more) -> None:  # type: ignore[no-untyped-def]
    assert [loop.header for loop in more("header").loops] == [
        "for batch in loader:                # header"
    ]
    assert more("else").loops == ()


def test_swallowing_handlers(more) -> None:  # type: ignore[no-untyped-def]
    assert (
        MORE.splitlines()[more("tried").swallowed_at - 1].strip().startswith("except (ValueError")
    )
    assert more("handler").swallowed_at is None
    assert more("tried").loops[0].swallows == more("tried").swallowed_at
    assert (
        MORE.splitlines()[more("suppressed").loops[0].swallows - 1]
        .strip()
        .startswith("with contextlib")
    )
    assert more("strict").loops[0].swallows is None


def test_orelse_and_match_branches(more) -> None:  # type: ignore[no-untyped-def]
    assert guards(more("elif")) == [("if rank == 0", "orelse", True), ("if batch", "body", False)]
    assert guards(more("case")) == [("match rank", "body", True)]
    assert guards(more("ternary")) == [("... if rank == 0", "body", True)]
    assert guards(more("short")) == [("rank == 0", "body", True)]


def test_a_nested_function_starts_a_new_context(more) -> None:  # type: ignore[no-untyped-def]
    assert (more("inner").function, more("inner").guards) == ("inner", ())
    assert (more("spread").function, more("spread").guards) == ("run", ())


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.py")
    assert isinstance(read_source_context(SourceLine(str(tmp_path / "fifo.py"), 1)), Unknown)


def test_form_feeds_escapes_and_encodings_do_not_shift_lines(tmp_path: Path) -> None:
    file = tmp_path / "old.py"
    file.write_bytes(
        b"# -*- coding: latin-1 -*-\r\nx = '\xe9\\d'\r\n\x0c\r\nif rank:\r\n    barrier()\r\n"
    )
    context = around(SourceLine(str(file), 5))
    assert (context.text, [guard.line for guard in context.guards]) == ("barrier()", [4])


def test_a_modified_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    for stamp, text in enumerate(["first()\n", "second()\n"]):
        file.write_text(text)
        os.utime(file, ns=(stamp, stamp))
        assert around(SourceLine(str(file), 1)).text == text.strip()
