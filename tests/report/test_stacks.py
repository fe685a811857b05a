"""The merged stacks on the terminal and the page: rank sets, forks, and nothing smuggled in by a name of a file."""

from __future__ import annotations

import io

from holdfast.findings import Verdict
from holdfast.report.html import incident_page
from holdfast.report.stacks import Branch, Frame, ThreadTree
from holdfast.report.terminal import render_stacks
from holdfast.report.timeline import Timeline

WAITING = Branch(
    (0, 1, 3), (Frame("train.py:41 train_step", own=True), Frame("distributed_c10d.py:9 all_reduce", own=False))
)
ASTRAY = Branch((2,), (Frame("data.py:12 <b>tokenize", own=True),), changing=(2,))
TREE = ThreadTree("MainThread", (Branch((0, 1, 2, 3), (Frame("train.py:90 main", own=True),), (WAITING, ASTRAY)),))


def drawn(*trees):
    file = io.StringIO()
    render_stacks(trees, file=file, width=110)
    return [line.strip() for line in file.getvalue().splitlines() if line.strip()]


def test_each_set_of_ranks_stands_beside_its_way():
    lines = drawn(TREE)
    assert [line.split() for line in lines[1:]] == [
        ["stacks", "0-3", "[MainThread]", "train.py:90", "main"],
        ["0-1,3", "└", "train.py:41", "train_step", ">", "distributed_c10d.py:9", "all_reduce"],
        ["2", "└", "data.py:12", "<b>tokenize", "(rank", "2", "changing)"],
    ]


def test_no_stacks_print_nothing():
    assert drawn() == []


def test_many_branches_are_cut_and_counted():
    many = tuple(Branch((rank,), (Frame(f"a.py:{rank} f", own=True),)) for rank in range(40))
    assert "and 17 more" in drawn(ThreadTree("MainThread", (Branch(tuple(range(40)), (), many),)))[-1]


def test_the_page_shows_the_tree_escaped():
    page = incident_page(Verdict(question="?"), Timeline((), 0.0, 0.0), title="attach", tree=(TREE,))
    assert "Stacks, merged" in page
    assert "data.py:12 &lt;b&gt;tokenize" in page
    assert '<li class="common">distributed_c10d.py:9 all_reduce</li>' in page
