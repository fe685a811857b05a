"""Buffers used before the wait, omitted groups, undivided sums, skipped parts, unequal sizes."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
"""
FOUND = {
    "handle-early: a read": """
def gather(x, parts):
    work = dist.all_gather(parts, x, async_op=True)
    full = torch.cat(parts)
    work.wait()
    return full
""",
    "handle-early: a buffer of the loop": """
def reduce(parameters, buffer, handles):
    for p in parameters:
        flat = buffer[: p.numel()]
        handles.append(dist.all_reduce(flat, async_op=True))
        p.grad.copy_(flat.view_as(p.grad))
    for handle in handles:
        handle.wait()
""",
    "handle-early: a write during a send": """
def send(x):
    work = dist.isend(x, 1)
    x.zero_()
    work.wait()
""",
    "habit-argument: a parameter": """
def share(x, group=None):
    size = dist.get_world_size(group)
    dist.all_reduce(x)
    return x / size
""",
    "habit-argument: an attribute": """
class Row(torch.nn.Module):
    def __init__(self, n, group):
        super().__init__()
        self.group = group
        self.size = n // dist.get_world_size(group)
    def forward(self, y):
        dist.all_reduce(y)
        return y
""",
    "habit-argument: sizes": """
def send(tokenizer, text):
    if dist.get_rank() == 0:
        ids = torch.tensor(tokenizer.encode(text))
    else:
        ids = torch.empty(0, dtype=torch.long)
    dist.broadcast(ids, src=0)
""",
    "habit-argument: objects": """
def send(paths):
    objects = list(paths) if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(objects, src=0)
""",
    "habit-result: gradients": """
def step(model, x, optimizer):
    loss = model(x).mean()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
""",
    "habit-result: a mean": """
def validate(total, loader):
    loss = total / len(loader)
    dist.all_reduce(loss)
    return loss.item()
""",
    "habit-branch: a constant loss": """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 1)
    def forward(self, x, boxes):
        if sum(len(each) for each in boxes) == 0:
            return torch.tensor(0.0, requires_grad=True)
        return self.head(x).mean()
model = DDP(Net())
""",
    "habit-branch: a part": """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tower, self.text = 1, 2
        self.tower = torch.nn.Linear(4, 1)
    def forward(self, x, images=None):
        if images is not None:
            x = x + self.tower(images)
        return x
def collate(rows):
    images = [row.image for row in rows if row.image is not None]
    return {"x": 1, "images": torch.stack(images) if images else None}
model = DDP(Net())
""",
    "habit-branch: one of two parts": """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.near = torch.nn.Linear(4, 1)
        self.far = torch.nn.Linear(4, 1)
    def forward(self, x):
        if (x > 0).any():
            return self.near(x)
        return self.far(x)
model = DDP(Net())
""",
    "habit-branch: a part with another test": """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = torch.nn.Linear(4, 1)
    def forward(self, x, images=None):
        if images is not None and len(images) > 0:
            x = x + self.tower(images)
        return x
model = DDP(Net())
""",
    "habit-branch: a head by its name": """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 1)})
    def forward(self, x, task):
        return self.heads[task](x)
model = DDP(Net())
""",
}
SILENT = {
    "handle-early: used after the wait": """
def gather(x, parts):
    work = dist.all_gather(parts, x, async_op=True)
    shape, other = parts[0].shape, torch.cat([x, x])
    work.wait()
    return torch.cat(parts)
""",
    "handle-early: a read during a send": """
def send(x):
    work = dist.isend(x, 1)
    y = x + 1
    work.wait()
    return y
""",
    "handle-early: another tensor of the name": """
def reduce(parts, works):
    for x in parts:
        works.append(dist.all_reduce(x, async_op=True))
        x = torch.zeros(3)
        x += 1
    for work in works:
        work.wait()
""",
    "habit-argument: the group everywhere": """
def share(x, group=None):
    dist.all_reduce(x, group=group)
    dist.barrier()
    return x / dist.get_world_size(group)
""",
    "habit-argument: two groups": """
def share(x, inner, outer):
    dist.reduce(x, 0, group=inner)
    dist.all_reduce(x, group=outer)
    dist.broadcast(x, 0)
""",
    "habit-argument: the size first": """
def send(tokenizer, text, count):
    if dist.get_rank() == 0:
        ids = torch.tensor(tokenizer.encode(text))
    else:
        ids = torch.empty(count, dtype=torch.long)
    dist.broadcast(ids, src=0)
""",
    "habit-argument: one object": """
def send(path):
    objects = [path] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(objects, src=0)
""",
    "habit-result: divided": """
def validate(total, loader):
    loss = total / len(loader)
    dist.all_reduce(loss)
    return loss / dist.get_world_size()
""",
    "habit-result: a sum of sums": """
def validate(total, count):
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count
""",
    "habit-branch: a loss of the parameters": """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 1)
    def forward(self, x, boxes):
        y = self.head(x)
        if len(boxes) == 0:
            return y.sum() * 0
        return y.mean()
model = DDP(Net())
""",
    "habit-branch: unused parameters are allowed": """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 1)})
    def forward(self, x, task):
        return self.heads[task](x)
model = DDP(Net(), find_unused_parameters=True)
""",
    "habit-branch: one of two parts by the size": """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.near = torch.nn.Linear(4, 1)
        self.far = torch.nn.Linear(4, 1)
    def forward(self, x):
        if x.shape[0] > 4:
            return self.near(x)
        return self.far(x)
model = DDP(Net())
""",
    "habit-branch: a part that all batches have or lack": """
class Net(torch.nn.Module):
    def __init__(self, cross):
        super().__init__()
        self.cross = torch.nn.Linear(4, 1)
    def forward(self, x, context=None):
        if context is not None:
            x = x + self.cross(context)
        return x
model = DDP(Net(True))
""",
}
KINDS = ("handle-early", "habit-argument", "habit-result", "habit-branch")


def kinds_of(text):
    program = program_from_sources({"main": ("main.py", HEAD + text)})
    return [each.kind for each in program.analyze() if each.kind in KINDS]


@pytest.mark.parametrize("name", FOUND)
def test_a_lost_part_is_found(name):
    assert kinds_of(FOUND[name]) == [name.partition(":")[0]]


@pytest.mark.parametrize("name", SILENT)
def test_correct_code_is_silent(name):
    assert kinds_of(SILENT[name]) == []


LOOPS = """\
import contextlib
import torch.distributed as dist
from accelerate import Accelerator
from lightning.pytorch import Callback
"""
LONE = {
    "a flag to stop": """
class Stop(Callback):
    def on_validation_end(self, trainer, module):
        if not trainer.is_global_zero:
            return
        if self.client.spent() > 3:
            trainer.should_stop = True
""",
    "a context that one rank enters": """
@contextlib.contextmanager
def on_main():
    if dist.get_rank() == 0:
        yield
""",
}
SHARED = {
    "a flag that all ranks agree on": """
class Stop(Callback):
    def on_validation_end(self, trainer, module):
        if trainer.is_global_zero and self.client.spent() > 3:
            trainer.should_stop = True
        trainer.should_stop = trainer.strategy.broadcast(trainer.should_stop)
""",
    "a flag of all ranks": """
class Stop(Callback):
    def on_validation_end(self, trainer, module):
        if trainer.global_step > 300:
            trainer.should_stop = True
""",
    "a context that ranks enter in turn": """
@contextlib.contextmanager
def main_first():
    if dist.get_rank() != 0:
        dist.barrier()
    yield
    if dist.get_rank() == 0:
        dist.barrier()
""",
    "two ways to enter": """
@contextlib.contextmanager
def on_main():
    if dist.get_rank() == 0:
        yield True
    else:
        yield False
""",
}
GENERATED = """
def run(model, loader):
    accelerator = Accelerator()
    for batch in loader:
        ids = accelerator.unwrap_model(model).generate(**batch, max_new_tokens=64)
        %s
"""


@pytest.mark.parametrize("text", LONE.values(), ids=LONE)
def test_what_one_rank_alone_decides_is_found(text):
    assert kinds_of(LOOPS + text) == ["habit-branch"]


@pytest.mark.parametrize("text", SHARED.values(), ids=SHARED)
def test_what_all_ranks_decide_is_silent(text):
    assert kinds_of(LOOPS + text) == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("accelerator.gather(ids)", 1),
        ("accelerator.gather(accelerator.pad_across_processes(ids, dim=1))", 0),
    ],
)
def test_generated_sequences_are_padded_before_they_are_gathered(text, count):
    program = program_from_sources({"main": ("main.py", LOOPS + GENERATED % text)})
    assert [each.kind for each in program.analyze()] == ["shape"] * count
