"""Shares that are divided twice or counted as the whole, and states that one rank loads."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler

dist.init_process_group("gloo")
torch.cuda.set_device(dist.get_node_local_rank())
"""
ROWS = """\
class Rows(Dataset):
    def __init__(self, rows, rank=0, world=1):
        self.rows = rows[rank::world]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, at):
        return self.rows[at]
"""
MAKE = "def make(data):\n    return DataLoader(data, sampler=DistributedSampler(data))  # found\n"
OWN = "Rows(open('x').readlines(), dist.get_rank(), dist.get_world_size())"
WHOLE = "Rows(open('x').readlines())"
EVALUATE = """\
def evaluate(model, loader):
    hits = 0
    for batch, labels in loader:
        hits += (model(batch).argmax(1) == labels).sum().item()
    {reduce}
    return hits / {size}  # found

data = torch.load("rows.pt")
evaluate(None, DataLoader(data, 8{sampler}))
"""
SAMPLED = ", sampler=DistributedSampler(data, shuffle=False)"
SUMMED = """hits = torch.tensor(hits)
    dist.all_reduce(hits)"""
RESUME = """\
class Resume:
    def __init__(self, path):
        self.path, self.is_main = path, dist.get_rank() == 0

    def load(self, model, optimizer):
        if {test}:
            saved = torch.load(self.path, map_location="cpu")
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])  # found
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)

def main(model):
    optimizer = torch.optim.AdamW(model.parameters())
    Resume("last.pt").load(model, optimizer)

main(torch.nn.Linear(2, 2))
"""
LOAD = """\
def load(path, device):
    return torch.load(path, map_location={device})  # found

def main():
    dist.barrier()
    return load("last.pt", "cpu")

main()
"""
EPOCHS = """\
class Loop:
    def __init__(self, model, train, held_out):
        self.model = model
        self.train_sampler = DistributedSampler(train)
        self.test_sampler = DistributedSampler(held_out, shuffle=False)
        self.loader = DataLoader(train, {passed})

    def fit(self):
        for epoch in range(9):  # found
            {receiver}.set_epoch(epoch)
            for batch in self.loader:
                self.model(batch).backward()
"""
SPLIT = """\
from datasets import load_dataset
from datasets.distributed import split_dataset_by_node

def load(rank):
    return split_dataset_by_node(load_dataset("c4"), rank=rank, world_size=8)

data = load({rank})
DistributedSampler(data, shuffle=False)  # found
"""
PASSED = "sampler=self.train_sampler"
BATCHED = "batch_sampler=BatchSampler(self.train_sampler, 8, True)"
FOUND = [
    ("habit-sampler", f"{ROWS}{MAKE}make({OWN})"),
    ("habit-sampler", SPLIT.format(rank="dist.get_rank()")),
    ("habit-result", EVALUATE.format(reduce="pass", size="len(loader.dataset)", sampler=SAMPLED)),
    ("habit-state", RESUME.format(test="dist.get_rank() == 0")),
    ("habit-state", RESUME.format(test="self.is_main")),
    ("habit-device", LOAD.format(device='"cuda:0"')),
    ("habit-device", LOAD.format(device='torch.device("cuda:0")')),
    ("epoch", EPOCHS.format(passed=PASSED, receiver="self.test_sampler")),
    ("epoch", EPOCHS.format(passed=BATCHED, receiver="self.loader.sampler")),
]
FINE = [
    ("habit-sampler", f"{ROWS}{MAKE}make({WHOLE})"),
    ("habit-sampler", f"{ROWS}DataLoader({OWN})"),
    ("habit-sampler", SPLIT.format(rank="0")),
    ("habit-result", EVALUATE.format(reduce=SUMMED, size="len(loader.dataset)", sampler=SAMPLED)),
    ("habit-result", EVALUATE.format(reduce="pass", size="len(loader.dataset)", sampler="")),
    ("habit-state", RESUME.format(test="self.path")),
    ("habit-state", f"{RESUME.format(test='self.is_main')}dist.broadcast_object_list([None])\n"),
    ("habit-device", LOAD.format(device="device")),
    ("habit-device", LOAD.format(device='f"cuda:{dist.get_node_local_rank()}"')),
    (
        "habit-device",
        LOAD.format(device='"cuda:0"').replace(
            "    return load", "    if dist.get_rank() == 0:\n        return load"
        ),
    ),
    ("epoch", EPOCHS.format(passed=PASSED, receiver="self.train_sampler")),
    ("epoch", EPOCHS.format(passed=PASSED, receiver="self.loader.sampler")),
    ("epoch", EPOCHS.format(passed=BATCHED, receiver="self.loader.batch_sampler.sampler")),
]


def found_lines(body, kind):
    text = f"{HEAD}{body}\n"
    program = program_from_sources({"main": ("main.py", text)})
    lines = text.splitlines()
    return [
        "# found" in lines[each.location.line - 1]
        for each in program.analyze()
        if each.kind == kind
    ]


@pytest.mark.parametrize(("kind", "body"), FOUND)
def test_what_is_of_one_rank_only_is_found(kind, body):
    assert found_lines(body, kind) == [True]


@pytest.mark.parametrize(("kind", "body"), FINE)
def test_what_all_ranks_have_is_fine(kind, body):
    assert found_lines(body, kind) == []
