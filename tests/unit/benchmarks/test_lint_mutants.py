"""Mutants of correct programs: what each operator changes, and when a mutant counts as found."""

import textwrap

import pytest

from benchmarks import lint_mutants
from benchmarks.lint_mutant_operators import OPERATORS
from benchmarks.mutable_source import MutableSource

HEAD = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
"""
#: By operator: a correct program, and lines that only its mutant has.
CHANGES = {
    "guard-collective": (
        """\
        def save(rank, state):
            if rank == 0:
                torch.save(state, "a.pt")
            dist.barrier()
        """,
        ["    if rank == 0:", "        dist.barrier()"],
    ),
    "guard-wrapper-call": (
        """\
        def sync():
            dist.barrier()
        def main():
            sync()
        """,
        ["    if dist.get_rank() == 0:", "        sync()"],
    ),
    "guard-method-call": (
        """\
        class Meter:
            def reduce(self):
                dist.barrier()
            def log(self):
                self.reduce()
        """,
        ["        if dist.get_rank() == 0:", "            self.reduce()"],
    ),
    "swap-order": (
        """\
        dist.barrier()
        dist.all_reduce(value)
        """,
        ["if dist.get_rank() == 0:", "    dist.all_reduce(value)", "    dist.barrier()", "else:"],
    ),
    "own-root": (
        """\
        dist.broadcast(value, src=0)
        """,
        ["dist.broadcast(value, src=dist.get_rank())"],
    ),
    "share-of-loop": (
        """\
        for value in values:
            dist.all_reduce(value)
        """,
        ["for value in list(values)[dist.get_rank()::dist.get_world_size()]:"],
    ),
    "stop-on-time": (
        """\
        model = DDP(torch.nn.Linear(1, 1))
        for batch in batches:
            loss = model(batch).sum()
            loss.backward()
        """,
        ["    import time", "    if time.time() - started > 60:", "        break"],
    ),
    "move-into-guard": (
        """\
        def save(rank, state):
            if rank == 0:
                torch.save(state, "a.pt")
            dist.barrier()
        """,
        ["        torch.save(state, 'a.pt')", "        dist.barrier()"],
    ),
    "return-before-collective": (
        """\
        def log(value):
            dist.all_reduce(value)
        """,
        ["    if not dist.get_rank() == 0:", "        return"],
    ),
    "guard-new-group": (
        """\
        group = dist.new_group([0, 1])
        """,
        ["if dist.get_rank() == 0:", "    group = dist.new_group([0, 1])"],
    ),
    "guard-evaluation": (
        """\
        model = DDP(torch.nn.Linear(1, 1))
        evaluate(model, batches)
        """,
        ["if dist.get_rank() == 0:", "    evaluate(model, batches)"],
    ),
    "skip-nonfinite-loss": (
        """\
        model = DDP(torch.nn.Linear(1, 1))
        for batch in batches:
            loss = model(batch).sum()
            loss.backward()
        """,
        ["    if not torch.isfinite(loss):", "        continue"],
    ),
    "break-on-loss": (
        """\
        def step(model, batch, scaler):
            loss = DDP(model)(batch).sum()
            scaler.scale(loss).backward()
        """,
        ["    if loss.item() < 0.001:", "        return"],
    ),
    "swallow-failed-step": (
        """\
        model = DDP(torch.nn.Linear(1, 1))
        for batch in batches:
            loss = model(batch).sum()
            loss.backward()
        """,
        ["    try:", "        loss.backward()", "    except RuntimeError:", "        continue"],
    ),
    "drop-group": (
        """\
        group = dist.new_group([0, 1])
        dist.all_reduce(value, group=group)
        """,
        ["dist.all_reduce(value)"],
    ),
    "root-outside-group": (
        """\
        dist.broadcast(value, src=roots[1], group=group)
        """,
        ["dist.broadcast(value, src=0, group=group)"],
    ),
    "remove-set-epoch": (
        """\
        sampler = DistributedSampler(data)
        for epoch in range(3):
            sampler.set_epoch(epoch)
        """,
        ["    pass"],
    ),
    "shuffle-instead-of-sampler": (
        """\
        sampler = DistributedSampler(data)
        loader = DataLoader(data, sampler=sampler)
        """,
        ["loader = DataLoader(data, shuffle=True)"],
    ),
    "remove-wait": (
        """\
        work = dist.all_reduce(value, async_op=True)
        work.wait()
        """,
        ["pass"],
    ),
    "remove-file-barrier": (
        """\
        if rank == 0:
            torch.save(state, "a.pt")
        dist.barrier()
        state = torch.load("a.pt")
        """,
        ["pass"],
    ),
    "drop-save-guard": (
        """\
        if rank == 0:
            torch.save(state, "a.pt")
        """,
        ["torch.save(state, 'a.pt')"],
    ),
    "remove-stop-reduction": (
        """\
        for epoch in range(3):
            dist.all_reduce(stop)
            if stop > 0:
                break
        """,
        ["    pass"],
    ),
    "send-first-on-both": (
        """\
        if rank == 0:
            dist.send(a, 1)
            dist.recv(b, 1)
        else:
            dist.recv(b, 0)
            dist.send(a, 0)
        """,
        ["    dist.send(a, 0)"],
    ),
}
#: Programs that no operator changes, as the result need not be a bug.
UNCHANGED = [
    "if dist.get_rank() == 0:\n    dist.barrier()\nelse:\n    dist.barrier()\n",
    "def f(rank, v):\n    if rank > 3:\n        return\n    dist.all_reduce(v)\n",
    "value.all_reduce()\n",
    "class A:\n def f(self):\n  dist.barrier(group=self.g)\n def h(self):\n  self.f()\n",
    "def f(v, group):\n    dist.all_reduce(v, group=group)\n",
    "if rank == 0:\n    torch.save(state, f'rank{rank}.pt')\n",
]


def mutants(text, operators=OPERATORS):
    source = MutableSource.parse(HEAD + textwrap.dedent(text))
    for operator in operators:
        for mutation in operator.mutate(source):
            yield operator.name, source.apply(mutation)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_each_operator_changes_one_place(operator):
    text, changed = CHANGES[operator.name]
    ((_, mutant),) = mutants(text, [operator])
    old, new = (HEAD + textwrap.dedent(text)).splitlines(), mutant.splitlines()
    starts = range(len(new))
    assert any(new[at : at + len(changed)] == changed for at in starts), mutant
    assert new != old
    assert operator.reason.endswith(".")


@pytest.mark.parametrize("text", UNCHANGED)
def test_what_need_not_be_a_bug_is_left_alone(text):
    assert list(mutants(text)) == []


def test_found_and_missed_mutants_are_counted_by_operator(tmp_path, capsys):
    (tmp_path / "train.py").write_text(HEAD + textwrap.dedent(CHANGES["guard-collective"][0]))
    assert lint_mutants.main([str(tmp_path), "--operator", "guard-collective", "-v"]) == 0
    output = capsys.readouterr().out
    assert "found     guard-collective" in output
    assert "rank-guarded-collective" in output
    assert "function                             1      1" in output


def test_a_finding_of_the_original_does_not_count(tmp_path):
    text = HEAD + "def save(rank):\n    if rank == 0:\n        dist.barrier()\n    dist.barrier()\n"
    (tmp_path / "train.py").write_text(text)
    operator = next(one for one in OPERATORS if one.name == "guard-collective")
    (mutant,) = lint_mutants.make_mutants(lint_mutants.find_programs(tmp_path), [operator], 9)
    harmless = lint_mutants.dataclasses.replace(mutant, text=text)
    score = lint_mutants.MutantLinter().score(harmless)
    assert (score.near, score.elsewhere) == ((), ())


def test_the_correct_programs_of_labelled_cases_are_mutated(tmp_path):
    case = tmp_path / "cases" / "one"
    case.mkdir(parents=True)
    (case / "case.json").write_text('{"good_files": ["good.py"], "bad_files": ["bad.py"]}')
    (case / "good.py").write_text("good = 1\n")
    (case / "bad.py").write_text("bad = 1\n")
    (tmp_path / "negatives").mkdir()
    (tmp_path / "negatives" / "right.py").write_text("right = 1\n")
    programs = lint_mutants.find_programs(tmp_path)
    assert [[file.path.name for file in program] for program in programs] == [
        ["good.py"],
        ["right.py"],
    ]


def test_a_missing_folder_is_an_error(tmp_path, capsys):
    assert lint_mutants.main([str(tmp_path / "no")]) == 2
    assert "no such folder" in capsys.readouterr().err
