"""A rank that left a loop of a library's trainer, from its stack and that of a rank inside."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from holdfast.core.rank_table import RaisedException, SourceLine, ThreadStack
from holdfast.watcher.job_summary import JobSummary
from holdfast.watcher.rules import hang
from holdfast.watcher.rules.stack_divergence import compared_frames, left_loops
from holdfast.watcher.rules.stall import StallLimits
from holdfast.watcher.source_context import read_source_context
from holdfast.watcher.stall_detector import StallDetector
from tests.unit.watcher.rank_tables import TRAIN, call, history, row, world

TRAINER = """
    def fit():
        for epoch in range(3):
            shuffle()  # next epoch
            train()  # inside
            validate()  # after
        save()  # end
    def train():
        for batch in loader:
            step(batch)  # batch
        log()  # logs
    def step(batch):
        if batch.sum():
            reduce()  # reduces
        gather()  # gathers
"""


@dataclass(frozen=True)
class Library:
    """Frames by the comment of their line, and the source around them."""

    frames: dict[str, SourceLine]

    def stack(self, *marks: str) -> tuple[SourceLine, ...]:
        """Return these frames, innermost first, below the script's."""
        return (*(self.frames[mark] for mark in marks), TRAIN)

    def text(self, line: SourceLine) -> str:
        """Return the text of a line."""
        return TRAINER.splitlines()[line.line - 1].strip()

    @property
    def source(self):
        """The source around every line."""
        return {frame: read_source_context(frame) for frame in self.frames.values()}


@pytest.fixture
def library(tmp_path):
    path = tmp_path / "site-packages" / "trainer.py"
    path.parent.mkdir()
    path.write_text(textwrap.dedent(TRAINER))
    frames, function = {}, ""
    for number, text in enumerate(path.read_text().splitlines(), 1):
        function = text[4:].partition("(")[0] if text.startswith("def") else function
        if "#" in text:
            frames[text.partition("# ")[2]] = SourceLine(str(path), number, function)
    return Library(frames)


BATCHES = "for batch in loader:"
INSIDE = ("reduces", "batch", "inside")


@pytest.mark.parametrize(
    ("left", "still", "expected"),
    [
        (("after",), INSIDE, [BATCHES]),
        (("end",), INSIDE, [BATCHES, "for epoch in range(3):"]),
        (("next epoch",), INSIDE, []),  # it may not have entered the loop yet
        (("logs", "inside"), INSIDE, [BATCHES]),
        (("gathers", "batch", "inside"), INSIDE, []),  # the same iteration
        (("reduces", "batch", "inside"), INSIDE, []),
        (("after",), ("next epoch",), []),
        ((), INSIDE, []),
    ],
)
def test_the_common_function_shows_which_rank_left_the_loop(library, left, still, expected):
    found = left_loops(library.stack(*left), library.stack(*still), library.source)
    assert [library.text(header) for header, _ in found] == expected


def test_a_loop_over_layers_is_not_one_over_the_data(library):
    module = SourceLine("/x/site-packages/torch/nn/modules/module.py", 9, "_call_impl")
    inside = (library.frames["reduces"], library.frames["batch"], module, library.frames["inside"])
    assert left_loops(library.stack("after"), (*inside, TRAIN), library.source) == []


def states(library, odd_rank, *, raised=False):
    """Return three ranks in call 31; one has left the loop of the others."""

    def state(rank):
        marks = ("after",) if rank == odd_rank else INSIDE
        own = call(31, "barrier") if rank == odd_rank else call(31)
        found = row(rank, *history(30), own)
        frames = library.stack(*marks)
        if raised:
            error = RaisedException("RuntimeError", "Connection reset by peer", frames=frames)
            return replace(found, raised=error)
        return replace(found, stacks=(ThreadStack(frames),))

    return [state(rank) for rank in range(3)]


@pytest.mark.parametrize("raised", [False, True])
def test_an_uneven_end_of_data_in_a_library_is_no_mismatch(library, raised):
    ranks = states(library, 1, raised=raised)
    assert compared_frames(ranks) == {*library.stack(*INSIDE), *library.stack("after")}
    verdict = hang.judge_hang(ranks, world(3), world_size=3, source=library.source)
    assert (verdict.root.cause, verdict.root.subject.rank) == ("uneven-inputs", 1)
    assert "rank 1 left the loop first at trainer.py:9" in verdict.root.message


def test_a_rank_with_more_data_is_named_if_the_others_left_the_loop(library):
    ranks = states(library, 1)
    ranks = [replace(state, rank=1 - min(state.rank, 1)) for state in ranks[:2]]
    others = replace(next(state for state in ranks if "barrier" in str(state.pending)), rank=2)
    verdict = hang.judge_hang([*ranks, others], world(3), world_size=3, source=library.source)
    assert (verdict.root.cause, verdict.root.subject.rank) == ("uneven-inputs", 1)
    assert "rank 1 is still in the loop at trainer.py:9" in verdict.root.message


def test_a_rank_that_went_on_since_the_divergence_is_not_compared(library):
    ranks = [
        replace(state, recent=(*state.recent, call(40, "barrier")), pending=())
        if state.rank == 1
        else state
        for state in states(library, 1)
    ]
    verdict = hang.judge_hang(ranks, world(3), world_size=3, source=library.source)
    assert verdict.root.cause == "mismatched-operation"


def test_on_a_tie_the_rank_that_left_the_loop_is_named(library):
    """Both calls continue the order of calls: a library logs now and then."""
    calls = [call(at, dtype="int64" if at % 10 == 0 else "float32", done=True) for at in range(40)]
    for left in (0, 1):
        ranks = []
        for rank in (0, 1):
            marks, dtype = (("after",), "int64") if rank == left else (INSIDE, "float32")
            own = row(rank, *calls, call(41, dtype=dtype))
            ranks.append(replace(own, stacks=(ThreadStack(library.stack(*marks)),)))
        verdict = hang.judge_hang(ranks, world(2), world_size=2, source=library.source)
        assert (verdict.root.cause, verdict.root.subject.rank) == ("uneven-inputs", left)


def test_a_guard_far_out_in_the_stack_is_found(tmp_path):
    """The collective is in another file, four calls below `if rank == 0:`."""
    script = tmp_path / "train.py"
    script.write_text("def main(rank):\n    if rank == 0:\n        export()\n    step()\n")
    guarded, step = (SourceLine(str(script), line, "main") for line in (3, 4))
    below = tuple(SourceLine(f"/job/file{number}.py", number, "f") for number in range(1, 5))
    odd = replace(row(0, *history(30), call(31, "barrier", site=below[0])))
    ranks = [
        replace(odd, stacks=(ThreadStack((*below, guarded)),)),
        *(
            replace(row(rank, *history(30), call(31)), stacks=(ThreadStack((TRAIN, step)),))
            for rank in (1, 2)
        ),
    ]
    source = {line: read_source_context(line) for line in (guarded, step)}
    verdict = hang.judge_hang(ranks, world(3), world_size=3, source=source)
    root = verdict.root
    assert (root.cause, root.subject.rank, root.subject.line) == ("rank-guarded-collective", 0, 3)


HELPER = """def main():
    for step in range(9):
        checked(step)
    reduce()
def checked(step):
    try:
        work(step)
    except ValueError:
        print("skipped")
"""


def test_an_exception_swallowed_in_a_function_that_the_loop_calls_is_named(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(HELPER)
    loop, after, tries = (
        SourceLine(str(script), line, name)
        for line, name in ((3, "main"), (4, "main"), (7, "checked"))
    )
    frames = {0: (TRAIN, tries, loop), 1: (TRAIN, after), 2: (TRAIN, tries, loop)}
    ranks = [
        replace(
            row(rank, *history(30), call(31, "barrier" if rank == 1 else "all_reduce")),
            stacks=(ThreadStack(own),),
        )
        for rank, own in frames.items()
    ]
    source = {line: read_source_context(line) for line in (loop, after, tries)}
    root = hang.judge_hang(ranks, world(3), world_size=3, source=source).root
    assert (root.cause, root.subject.rank) == ("rank-skips-collective", 1)
    assert "an exception is swallowed at train.py:8" in root.message


TURNS = """\
def train(batches):
    for batch in batches:
        reduce(batch)
def validate(batches):
    for batch in batches:
        count(batch)
def main():
    for epoch in range(9):
        train(data)
        validate(data)
        save(epoch)
"""


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        (
            ("broadcast", 11, None),
            ("rank-skips-collective", 11, "rank 2 skipped broadcast at job.py:11"),
        ),
        (("all_gather", 6, 10), ("uneven-inputs", 5, "rank 2 left the loop first at job.py:5")),
    ],
)
def test_a_rank_in_the_next_turn_has_not_stayed_in_the_loop(others, expected, tmp_path):
    """Rank 2 trains again after its validation, while the others save, or still validate."""
    script = tmp_path / "job.py"
    script.write_text(TURNS)

    def at(line, function="main"):
        return SourceLine(str(script), line, function)

    validates, trains = at(6, "validate"), at(3, "train")
    before = [replace(each, caller=at(10)) for each in history(30, ("all_gather", validates))]
    name, line, caller = others
    site = validates if caller else at(line)
    others_in = replace(call(31, name, site=site), caller=at(caller) if caller else None)
    own = replace(call(31, "all_reduce", site=trains), caller=at(9))
    frames = {0: (site, at(caller)) if caller else (site,), 2: (trains, at(9))}
    frames[1] = frames[0]
    ranks = tuple(
        row(rank, *before, own if rank == 2 else others_in, stacks=(ThreadStack(frames[rank]),))
        for rank in range(3)
    )
    table = JobSummary(ranks, world(3), 3, silent_since=0.0, time=31.0)
    root = StallDetector(StallLimits()).judge(table).root
    cause, line, message = expected
    assert (root.cause, root.subject.rank, root.subject.line) == (cause, 2, line)
    assert root.message.startswith(message)
    assert "all_reduce at job.py:3 of the next iteration" in root.message


def judge(ranks):
    """Return the root that the detector finds with the source of the ranks' lines."""
    table = JobSummary(tuple(ranks), world(len(ranks)), len(ranks), silent_since=0.0, time=31.0)
    return StallDetector(StallLimits()).judge(table).root


NESTED = """\
def apply(values, gather):
    if not isinstance(values, list):
        return gather(values)
    for value in values:
        apply(value, gather)
"""


def test_a_loop_over_nested_values_is_not_one_over_the_data(tmp_path):
    """A library gathers each state of a metric; rank 2 has one less, and trains again."""
    library = tmp_path / "site-packages" / "nested.py"
    library.parent.mkdir()
    library.write_text(NESTED)
    script = tmp_path / "job.py"
    script.write_text(TURNS)
    counts, trains, called = (
        SourceLine(str(script), line, name)
        for line, name in ((6, "validate"), (3, "train"), (10, "main"))
    )
    inside = tuple(SourceLine(str(library), line, "apply") for line in (3, 5, 5))
    before = [replace(each, caller=called) for each in history(30, ("barrier", counts))]
    usual = replace(call(31, "all_gather", site=counts), caller=called)
    odd = replace(call(31, "all_reduce", site=trains), caller=replace(called, line=9))
    frames = {2: (trains, replace(called, line=9))}
    ranks = [
        row(
            rank,
            *before,
            odd if rank == 2 else usual,
            stacks=(ThreadStack(frames.get(rank, (*inside, replace(called, line=11)))),),
        )
        for rank in range(3)
    ]
    root = judge(ranks)
    assert (root.cause, root.subject.rank) == ("rank-skips-collective", 2)
    assert "left the loop" not in root.message


SHARE = """\
def share(box):
    try:
        broadcast(box)
    except Exception:
        return None
    return box
def main():
    share(config)
    reduce()
"""


@pytest.mark.parametrize(
    ("program", "cause", "line"),
    [
        (SHARE, "rank-skips-collective", 4),
        (SHARE.replace("return None", "raise"), "mismatched-operation", 9),
        (SHARE.replace("main():", "main(test):\n    if test:", 1), "mismatched-operation", 10),
        (SHARE.replace("share(config)\n    reduce()", "reduce()\n    share(config)"), None, None),
    ],
)
@pytest.mark.parametrize("size", [2, 3])
def test_a_handler_lets_a_rank_go_on_without_a_call(program, cause, line, size, tmp_path):
    """Rank 0 cannot pickle what it broadcasts; its handler hides that, and it goes on."""
    program = program.replace("if test:\n    share", "if test:\n        share")
    script = tmp_path / "job.py"
    script.write_text(program)
    lines = {text.strip(): at for at, text in enumerate(program.splitlines(), 1)}

    def at(text, function):
        return SourceLine(str(script), lines[text], function)

    usual = replace(
        call(31, "broadcast", site=at("broadcast(box)", "share")),
        caller=at("share(config)", "main"),
    )
    odd = call(31, "all_reduce", site=at("reduce()", "main"))
    before = history(30, ("all_gather", TRAIN))
    root = judge([row(rank, *before, usual if rank else odd) for rank in range(size)])
    if cause is None:
        assert root.cause != "rank-skips-collective"
    elif cause == "rank-skips-collective" or size > 2:
        assert (root.cause, root.subject.rank, root.subject.line) == (cause, 0, line)


FORWARD = """\
def forward(x):
    return project(x)
def main():
    for ids in loader:
        model(ids)
"""


@pytest.mark.parametrize(
    ("shapes", "text", "line"),
    [
        (((4, 38, 32), (4, 37, 32)), "project", 5),
        (((4, 38, 32), (4, 38, 31)), "project", 2),  # a parameter has another width
        (((4, 38, 32), (4, 37, 32)), "all_reduce", 2),  # the script's own collective
    ],
)
def test_activations_of_different_sizes_are_explained_by_the_call_of_the_model(
    shapes, text, line, tmp_path
):
    script = tmp_path / "job.py"
    script.write_text(FORWARD.replace("project", text))
    inner, outer = SourceLine(str(script), 2, "forward"), SourceLine(str(script), 5, "main")
    module = SourceLine("/x/site-packages/torch/nn/modules/module.py", 9, "_call_impl")
    ranks = [
        row(
            rank,
            *history(30, ("all_reduce", inner)),
            replace(call(31, site=inner, elements=sum(shape)), shape=shape),
            stacks=(ThreadStack((inner, module, outer)),),
        )
        for rank, shape in enumerate(shapes)
    ]
    root = judge(ranks)
    assert (root.cause, root.subject.line) == ("mismatched-shape", line)


CHECKED = """\
def check(loss):
    if loss > 9:
        reduce(flag)
        return True
def main():
    for batch in loader:
        if check(batch):
            break
        backward(batch)
"""


def test_a_new_call_of_another_line_is_explained_by_the_test_around_it(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(CHECKED)
    inner, trains, test = (
        SourceLine(str(script), line, name)
        for line, name in ((3, "check"), (9, "main"), (7, "main"))
    )
    before = history(30, ("all_reduce", trains))
    odd = replace(call(31, dtype="int64", site=inner), caller=test)
    ranks = [row(rank, *before, odd if rank == 1 else call(31, site=trains)) for rank in range(3)]
    root = judge(ranks)
    assert (root.cause, root.subject.rank, root.subject.line) == ("mismatched-dtype", 1, 2)
