"""What a name alone says is a note; a wrapped model's forward that fails on one rank is a finding."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from holdfast.core.findings import Level
from holdfast.lint.options import LintOptions
from holdfast.lint.run import lint_paths

GUARD = """\
import torch.distributed as dist

def save(model, {parameters}):
    if rank == 0:
        dist.barrier()
"""
FORWARD = """\
import torch
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(torch.nn.Linear(4, 4))
for batch in open("batches"):
    try:
        loss = model(batch).sum()
        {inside}
    except {caught}:
        {handler}
    {after}
"""


def findings(folder: Path, text: str) -> list[tuple[str, Level, int | None]]:
    (folder / "train.py").write_text(text)
    found = lint_paths([folder / "train.py"]).findings
    return [(item.finding.cause, item.finding.level, item.finding.subject.line) for item in found]


@pytest.mark.parametrize(
    ("parameters", "level"),
    [("rank", Level.NOTE), ("rank=0", Level.NOTE), ("rank, world_size", Level.ERROR)],
)
def test_a_parameter_called_rank_is_one_until_a_caller_is_seen(tmp_path, parameters, level):
    text = GUARD.format(parameters=parameters)
    assert findings(tmp_path, text) == [("rank-guarded-collective", level, 5)]


def test_the_rank_of_a_matrix_is_none(tmp_path):
    assert findings(tmp_path, GUARD.format(parameters="rank=8")) == []


def test_a_callers_constant_is_believed(tmp_path):
    assert findings(tmp_path, GUARD.format(parameters="rank") + "\nsave(None, 0)\n") == []


@pytest.mark.parametrize(
    ("inside", "caught", "handler", "after", "line"),
    [
        ("loss.backward()", "RuntimeError", "print('skipped')", "", 7),
        ("loss.backward()", "Exception", "continue", "", 7),
        ("pass", "torch.cuda.OutOfMemoryError", "continue", "loss.backward()", 10),
    ],
)
def test_a_failed_forward_skips_the_backward_of_all(tmp_path, inside, caught, handler, after, line):
    text = FORWARD.format(inside=inside, caught=caught, handler=handler, after=after)
    assert findings(tmp_path, text) == [("rank-skips-collective", Level.WARNING, line)]


@pytest.mark.parametrize(
    ("caught", "handler"), [("RuntimeError", "raise"), ("KeyboardInterrupt", "break")]
)
def test_a_failed_forward_that_ends_the_job_is_none(tmp_path, caught, handler):
    text = FORWARD.format(inside="loss.backward()", caught=caught, handler=handler, after="")
    assert findings(tmp_path, text) == []


@pytest.mark.parametrize("forward", ["model(torch.ones(4, 4))", "torch.ones(4, 4)"])
def test_a_forward_that_may_not_wait_does_not_hide_the_collective_after_it(tmp_path, forward):
    text = f"""\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))

def evaluate():
    loss = {forward}.mean().detach()
    dist.all_reduce(loss)
    return loss.item()

if dist.get_rank() == 0:
    print(evaluate())
"""
    assert findings(tmp_path, text) == [("rank-guarded-collective", Level.ERROR, 13)]


@pytest.mark.parametrize(("average", "expected"), [("all_average", 0), ("float", 1)])
def test_a_loss_that_an_unknown_function_averaged_is_the_same_on_all_ranks(
    tmp_path, average, expected
):
    text = f"""\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from elsewhere import all_average, dataset

dist.init_process_group("gloo")
loader = DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False))
model = DistributedDataParallel(torch.nn.Linear(4, 4))
for batch in loader:
    loss = model(batch).mean()
    loss.backward()
    if {average}(loss.item()) > 5:
        break
"""
    assert len(findings(tmp_path, text)) == expected


#: Broken program (the finding is on the line with ``# found``) and mended program, by mechanism.
HABITS = {
    "a collective by name under a main-process test": (
        """\
        from torch import distributed
        import engine

        def save(trainer):
            if trainer.is_main_process():
                engine.all_reduce_metrics(trainer)  # found
        """,
        """\
        from torch import distributed
        import engine

        def save(trainer):
            engine.all_reduce_metrics(trainer)
            if trainer.is_main_process():
                print(trainer)
        """,
    ),
    "a variable that only rank 0 has": (
        """\
        import torch.distributed as dist

        def train(trainer, gpu_rank):
            stopper = Stopper() if gpu_rank == 0 else None
            for batch in trainer.batches:
                if stopper is not None:
                    if stopper.has_stopped(batch):
                        break  # found
                trainer.gather_stats(dist.all_gather_object([], batch))
        """,
        """\
        import torch.distributed as dist

        def train(trainer, gpu_rank):
            stopper = Stopper() if gpu_rank == 0 else None
            for batch in trainer.batches:
                if stopper is not None:
                    stopper.add(batch)
                trainer.gather_stats(dist.all_gather_object([], batch))
        """,
    ),
    "an empty list of the rank's own": (
        """\
        import torch.distributed as dist

        def finished(self):
            if len(self.child_processes) == 0:
                return True  # found
            return dist.all_reduce(self.count)
        """,
        """\
        import torch.distributed as dist

        def finished(self):
            count = len(self.child_processes)
            dist.all_reduce(self.count)
            if count == 0:
                return True
        """,
    ),
    "the global rank as index of a GPU": (
        """\
        import torch
        import torch.distributed as dist

        def device():
            return f"cuda:{dist.get_rank()}"  # found
        """,
        """\
        import os
        import torch
        import torch.distributed as dist

        def device():
            return f"cuda:{os.environ['LOCAL_RANK']}"
        """,
    ),
    "ranks unpacked in another order": (
        """\
        import os
        import torch.distributed as dist

        def ranks():
            local_rank, rank = int(os.environ["LOCAL_RANK"]), dist.get_rank()
            return local_rank, rank

        def main():
            rank, local_rank = ranks()  # found
        """,
        """\
        import os
        import torch.distributed as dist

        def ranks():
            local_rank, rank = int(os.environ["LOCAL_RANK"]), dist.get_rank()
            return local_rank, rank

        def main():
            local_rank, rank = ranks()
        """,
    ),
    "rank 0 as root of any group": (
        """\
        import torch.distributed as dist

        def norms(self, values):
            dist.reduce(values, 0, group=self.process_group)  # found
        """,
        """\
        import torch.distributed as dist

        def norms(self, values):
            dist.reduce(values, group=self.process_group, group_dst=0)
        """,
    ),
    "a number is reduced": (
        """\
        import torch.distributed as dist

        def count(batches):
            tokens = 0
            for batch in batches:
                tokens += batch.numel()
            dist.all_reduce(tokens)  # found
        """,
        """\
        import torch
        import torch.distributed as dist

        def count(batches):
            tokens = torch.tensor(0)
            for batch in batches:
                tokens += batch.numel()
            dist.all_reduce(tokens)
        """,
    ),
    "a loader without a sampler": (
        """\
        import torch.distributed as dist
        from torch.utils.data import DataLoader

        def main(data):
            dist.init_process_group("gloo")
            return DataLoader(data, batch_size=4)  # found
        """,
        """\
        import torch.distributed as dist
        from torch.utils.data import DataLoader, DistributedSampler

        def main(data):
            dist.init_process_group("gloo")
            return DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
        """,
    ),
    "the time in a path": (
        """\
        import os
        import time
        import torch.distributed as dist

        def main(args):
            args.output_dir = f"{args.output_dir}/{int(time.time())}"  # found
            dist.barrier()
        """,
        """\
        import os
        import time
        import torch.distributed as dist

        def main(args):
            box = [int(time.time())]
            dist.broadcast_object_list(box, src=0)
            args.output_dir = f"{args.output_dir}/{box[0]}"
        """,
    ),
    "out of memory on one rank": (
        """\
        import torch.distributed as dist

        def step(model, batch, grads):
            try:
                model(batch).sum().backward()
            except RuntimeError as error:
                if "out of memory" not in str(error):  # found
                    raise
                print("skipped")
        """,
        """\
        import torch.distributed as dist

        def step(model, batch, grads):
            try:
                model(batch).sum().backward()
            except RuntimeError as error:
                print("out of memory", error)
                raise
        """,
    ),
    "the main process by its local rank": (
        """\
        import os
        import torch.distributed as dist

        def if_main_process():
            if int(os.environ["LOCAL_RANK"]) == 0:  # found
                return True
            return False
        """,
        """\
        import torch.distributed as dist

        def if_main_process():
            if dist.get_rank() == 0:
                return True
            return False
        """,
    ),
    "a decision of one rank": (
        """\
        import torch.distributed as dist

        def train(batches, monitor):
            stop = False
            for batch in batches:
                if monitor.gpu_rank == 0:
                    stop = monitor.is_over(batch)
                if stop:
                    break  # found
                monitor.synchronize(batch)
                dist.barrier(group=None)
        """,
        """\
        import torch.distributed as dist

        def train(batches, monitor):
            stop = False
            for batch in batches:
                if monitor.gpu_rank == 0:
                    stop = monitor.is_over(batch)
                monitor.synchronize(batch)
                dist.barrier(group=None)
            return stop
        """,
    ),
    "members of the rank's own group": (
        """\
        import torch.distributed as dist

        def ends(grid):
            return dist.new_group(ranks=[grid.pp_group[0], grid.pp_group[-1]])  # found
        """,
        """\
        import torch.distributed as dist

        def ends(grid):
            for ranks in grid.pp_groups:
                group = dist.new_group(ranks=[ranks[0], ranks[-1]])
            return group
        """,
    ),
    "an iterator that ends on one rank": (
        """\
        from torch.nn.parallel import DistributedDataParallel

        def train(model, batches):
            model = DistributedDataParallel(model)
            while True:  # found
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                model(batch).sum().backward()
        """,
        """\
        from torch.nn.parallel import DistributedDataParallel

        def train(model, batches, steps):
            model = DistributedDataParallel(model)
            for _ in range(steps):
                model(next(batches)).sum().backward()
        """,
    ),
    "a queue that is empty on one rank": (
        """\
        import queue
        import torch.distributed as dist

        def drain(waiting):
            while True:  # found
                try:
                    item = waiting.get_nowait()
                except queue.Empty:
                    break
                dist.all_reduce(item)
        """,
        """\
        import queue
        import torch.distributed as dist

        def drain(waiting):
            items = []
            while True:
                try:
                    items.append(waiting.get_nowait())
                except queue.Empty:
                    break
            dist.all_reduce(sum(items))
        """,
    ),
    "a wrapped model is evaluated on one rank": (
        """\
        from torch.nn.parallel import DistributedDataParallel

        def train(self, model, batches):
            model = DistributedDataParallel(model)
            if self.gpu_rank == 0:
                self.evaluate(model, batches)  # found
        """,
        """\
        from torch.nn.parallel import DistributedDataParallel

        def train(self, model, batches):
            model = DistributedDataParallel(model)
            if self.gpu_rank == 0:
                self.evaluate(model.module, batches)
        """,
    ),
    "shares of lists that each rank shuffles": (
        """\
        import random
        import torch.distributed as dist

        def mine(files, world_size):
            random.shuffle(files)  # found
            return files[dist.get_rank() :: world_size]
        """,
        """\
        import random
        import torch.distributed as dist

        def mine(files, world_size):
            random.Random(7).shuffle(files)
            return sorted(files)[dist.get_rank() :: world_size]
        """,
    ),
    "an evaluation of the rank's own share": (
        """\
        import torch.distributed as dist
        from torch.utils.data import DataLoader, DistributedSampler

        def evaluate(model, loader):
            loss = 0.0
            for batch in loader:
                loss += model(batch).item()
            return loss / len(loader)

        def main(model, data):
            loader = DataLoader(data, sampler=DistributedSampler(data, shuffle=False))
            loss = evaluate(model, loader)  # found
            print(loss)
        """,
        """\
        import torch
        import torch.distributed as dist
        from torch.utils.data import DataLoader, DistributedSampler

        def evaluate(model, loader):
            loss = torch.zeros(2)
            for batch in loader:
                loss += model(batch)
            dist.all_reduce(loss)
            return loss[0] / loss[1]

        def main(model, data):
            loader = DataLoader(data, sampler=DistributedSampler(data, shuffle=False))
            loss = evaluate(model, loader)
            print(loss)
        """,
    ),
    "a gather of what a loop has collected": (
        """\
        import torch
        import torch.distributed as dist

        def collect(model, loader, parts):
            scores = []
            for batch in loader:
                scores.append(model(batch))
            joined = torch.cat(scores)
            dist.all_gather(parts, joined)  # found
        """,
        """\
        import torch
        import torch.distributed as dist

        def collect(model, loader, parts):
            scores = []
            for batch in loader:
                scores.append(model(batch))
            dist.all_gather_object(parts, torch.cat(scores))
        """,
    ),
    "an unseeded shuffle before a share": (
        """\
        import random
        import torch.distributed as dist

        def share(data, epoch):
            random.shuffle(data)  # found
            return data[dist.get_rank() :: dist.get_world_size()]
        """,
        """\
        import random
        import torch.distributed as dist

        def share(data, epoch):
            random.Random(epoch).shuffle(data)
            return data[dist.get_rank() :: dist.get_world_size()]
        """,
    ),
    "a loader of a dataset that is not partitioned": (
        """\
        import torch.distributed as dist
        from torch.utils.data import DataLoader
        from engine import Rows

        def loader(path):
            dist.init_process_group("nccl")
            rows = Rows(path, shuffle=True)
            return DataLoader(rows, num_workers=4)  # found
        """,
        """\
        import torch.distributed as dist
        from torch.utils.data import DataLoader
        from engine import Rows

        def loader(path):
            dist.init_process_group("nccl")
            rows = Rows(path, shuffle=True, partition=True)
            return DataLoader(rows, num_workers=4)
        """,
    ),
    "rank 0 as root of a group": (
        """\
        import torch.distributed as dist

        def share(seed, ranks):
            part = dist.new_group(ranks)
            dist.broadcast(seed, src=0, group=part)  # found
        """,
        """\
        import torch.distributed as dist

        def share(seed, ranks):
            part = dist.new_group(backend="gloo")
            dist.broadcast(seed, src=0, group=part)
        """,
    ),
    "the first rank of each host as root": (
        """\
        import torch.distributed as dist

        def share(groups, seed, size):
            members = list(range(1, 8, size))
            leaders = groups.of(members)
            dist.broadcast(seed, src=0, group=leaders)  # found
        """,
        """\
        import torch.distributed as dist

        def share(groups, seed, size):
            members = list(range(0, 8, size))
            leaders = groups.of(members)
            dist.broadcast(seed, src=0, group=leaders)
        """,
    ),
    "a folder by the time": (
        """\
        import os, time
        import torch.distributed as dist

        def start(folder):
            dist.barrier()
            timestamp = time.strftime("%H%M%S")  # found
            run = os.path.join(folder, timestamp)
            return run
        """,
        """\
        import os, time
        import torch.distributed as dist

        def start(folder):
            dist.barrier()
            timestamp = time.strftime("%H%M%S")
            log_file = os.path.join(folder, timestamp)
            print(timestamp)
            return log_file
        """,
    ),
    "a gather of unpadded counts": (
        """\
        import torch
        import torch.distributed as dist

        def collect(loader, parts, width):
            counts = []
            for batch in loader:
                counts.append(len(batch))
            counts = torch.tensor(counts)
            counts = torch.cat([counts, torch.ones(1)])
            dist.all_gather_into_tensor(parts, counts)  # found
        """,
        """\
        import torch
        import torch.distributed as dist

        def collect(loader, parts, width):
            counts = []
            for batch in loader:
                counts.append(len(batch))
            counts = torch.tensor(counts)
            counts = torch.cat([counts, torch.full((width - len(counts),), -1)])
            dist.all_gather_into_tensor(parts, counts)
        """,
    ),
    "a barrier of a group by a rank in the job": (
        """\
        import torch.distributed as dist

        def merge(mesh, stats, rank):
            if dist.get_rank() == mesh.first:
                combine(stats, mesh.group("columns"))  # found

        def combine(stats, group):
            dist.barrier(group=group)
        """,
        """\
        import torch.distributed as dist

        def merge(mesh, stats, rank):
            if dist.get_rank(mesh.group("rows")) == 0:
                combine(stats, mesh.group("columns"))

        def combine(stats, group):
            dist.barrier(group=group)
        """,
    ),
    "an exit by the rank's batch": (
        """\
        import torch.distributed as dist

        def train(step, batches):
            for batch, valid_mask in batches:
                if not valid_mask:
                    continue  # found
                step(batch)
                dist.barrier()
        """,
        """\
        import torch.distributed as dist

        def train(step, batches, valid_data=None):
            for batch in batches:
                if not valid_data:
                    continue
                step(batch)
                dist.barrier()
        """,
    ),
    "an exit of all ranks but one": (
        """\
        import os
        import torch.distributed as dist

        def export(self, model):
            if self.proc_rank != 0:
                return  # found
            os.environ["MASTER_PORT"] = "1"
            dist.barrier()
        """,
        """\
        import os
        import torch.distributed as dist

        def export(self, model):
            if self.proc_rank != 0:
                return
            os.environ["WORLD_SIZE"] = "1"
            dist.barrier()
        """,
    ),
}


def by_habit(which: int) -> list[object]:
    return [pytest.param(programs[which], id=name) for name, programs in HABITS.items()]


@pytest.mark.parametrize("program", by_habit(0))
def test_a_habit_is_a_note(tmp_path, program):
    text = textwrap.dedent(program)
    line = 1 + next(at for at, text_line in enumerate(text.splitlines()) if "# found" in text_line)
    assert (Level.NOTE, line) in [found[1:] for found in findings(tmp_path, text)]


@pytest.mark.parametrize("program", by_habit(1))
def test_a_mended_habit_is_not_reported(tmp_path, program):
    assert findings(tmp_path, textwrap.dedent(program)) == []


def test_a_test_of_files_is_shown_with_strict_only(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch.distributed as dist\n\ndef save(self, files, path):\n"
        "    if files.isfile(path):\n        return\n    dist.barrier()\n"
    )
    shown = [
        [item.finding.subject.line for item in lint_paths([tmp_path], options).findings]
        for options in (LintOptions(), LintOptions(strict=True))
    ]
    assert shown[0] == []
    assert shown[1]
