"""Merged stacks on the terminal and the page: rank sets, forks, escaped file names."""

from __future__ import annotations

import io

from holdfast.core.findings import Verdict
from holdfast.report.html import incident_page
from holdfast.report.stack_tree import StackBranch, StackFrame, ThreadTree
from holdfast.report.terminal import render_stacks
from holdfast.report.timeline import Timeline

WAITING = StackBranch(
    (0, 1, 3),
    (
        StackFrame("train.py:41 train_step", own=True),
        StackFrame("distributed_c10d.py:9 all_reduce", own=False),
    ),
)
OUTLIER = StackBranch((2,), (StackFrame("data.py:12 <b>tokenize", own=True),), changing=(2,))
TREE = ThreadTree(
    "MainThread",
    (StackBranch((0, 1, 2, 3), (StackFrame("train.py:90 main", own=True),), (WAITING, OUTLIER)),),
)


def drawn(*trees):
    file = io.StringIO()
    render_stacks(trees, file=file, width=110)
    return [line.strip() for line in file.getvalue().splitlines() if line.strip()]


def test_ranks_are_shown_beside_their_frames():
    lines = drawn(TREE)
    assert [line.split() for line in lines[1:]] == [
        ["stacks", "0-3", "[MainThread]", "train.py:90", "main"],
        ["0-1,3", "└", "train.py:41", "train_step", ">", "distributed_c10d.py:9", "all_reduce"],
        ["2", "└", "data.py:12", "<b>tokenize", "(rank", "2", "changing)"],
    ]


def test_no_stacks_print_nothing():
    assert drawn() == []


def test_many_branches_are_limited_and_counted():
    many = tuple(
        StackBranch((rank,), (StackFrame(f"a.py:{rank} f", own=True),)) for rank in range(40)
    )
    assert (
        "and 17 more"
        in drawn(ThreadTree("MainThread", (StackBranch(tuple(range(40)), (), many),)))[-1]
    )


def test_page_escapes_the_tree():
    page = incident_page(
        Verdict(question="?"), Timeline((), 0.0, 0.0), title="attach", tree=(TREE,)
    )
    assert "Merged stacks" in page
    assert "data.py:12 &lt;b&gt;tokenize" in page
    assert '<li class="common">distributed_c10d.py:9 all_reduce</li>' in page
