"""Models known by the object, progress bars, cut dimensions, shares, monitors and samplers."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import os
import lightning as L
import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from tqdm import tqdm

dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
rank, world = dist.get_rank(), dist.get_world_size()

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def forward(self, x):
        return self.layer(x)

def loader_of(data):
    return DataLoader(data, 4, sampler=DistributedSampler(data, world, rank))

batches = loader_of(torch.utils.data.TensorDataset(torch.zeros(9)))
"""
OPTIMIZER = """
def optimizer_of(model):
    return torch.optim.AdamW(model.parameters())
def shard(model):
    return FSDP(model)
model = Net()
{steps}
"""
AROUND = """
def inner(model):
    return model.module if isinstance(model, DDP) else model
def loss_of(model, x):
    net = {net}
    return net(x).mean()
model = DDP(Net())
loss_of(model, torch.ones(1)).backward()
"""
WEIGHTS = """
class Builder:
    def build(self):
        model = Net()
        if {test}:
            model.load_state_dict(torch.load("w.pt"))
        return model
    def shard(self, model):
        return FSDP(model{option})
builder = Builder()
builder.shard(builder.build())
"""
BAR = """
bar = tqdm(range(100), disable={disable})
for _ in range(100):
    bar.update(1)
    if bar.n % 10 == 0:
        dist.barrier()
"""
CUT = """
def gather(tensor):
    output = [torch.ones_like(tensor) for _ in range(world)]
    dist.all_gather(output, tensor)
for mask, ids in batches:
    longest = {longest}
    gather(ids[:, :longest])
"""
WIDTH = """
rows = torch.cat([torch.ones(n, 4) for n in range(rank)])
padded = rows.new_zeros(8, {width})
dist.all_gather([torch.empty_like(padded) for _ in range(world)], padded)
"""
PIECES = """
index = torch.load("index.pt").nonzero().view(-1)
mine = {cut}[rank]
model = DDP(Net())
for x in DataLoader(mine, 4):
    model(x)
"""
MONITOR = """
from lightning.pytorch.callbacks import ModelCheckpoint
class Lit(L.LightningModule):
    def validation_step(self, batch, batch_idx):
        for name, value in self.metrics(batch).items():
            self.log(f"{{self.prefix}}/{{name}}", value, rank_zero_only={only})
saver = ModelCheckpoint(monitor="{monitor}")
"""
SAMPLER = """
import mpu
model = DDP(Net(), process_group={group})
sampler = DistributedSampler(mpu.data{option})
"""
DIFFER = {
    "an optimizer before FSDP": OPTIMIZER.format(
        steps="optimizer = optimizer_of(model)\nmodel = shard(model)"
    ),
    "a forward around DDP": AROUND.format(net="inner(model)"),
    "weights of one rank": WEIGHTS.format(test="rank == 0", option=""),
    "a bar of one rank": BAR.format(disable="rank != 0"),
    "a length of the data": CUT.format(longest="int(mask.sum(1).max())"),
    "a remainder": PIECES.format(cut="torch.chunk(index, world)"),
    "a monitor": MONITOR.format(only="True", monitor="val/loss"),
    "a sampler of all": SAMPLER.format(group="mpu.data_parallel_group()", option=""),
}
ALIKE = {
    "an optimizer after FSDP": OPTIMIZER.format(
        steps="model = shard(model)\noptimizer = optimizer_of(model)"
    ),
    "a forward through DDP": AROUND.format(net="model"),
    "weights of all": WEIGHTS.format(test="world > 0", option=""),
    "weights that FSDP broadcasts": WEIGHTS.format(
        test="rank == 0", option=", sync_module_states=True"
    ),
    "a bar of all": BAR.format(disable="False"),
    "a length of all": CUT.format(longest="len(os.environ)"),
    "a width": WIDTH.format(width="rows.shape[1]"),
    "equal pieces": PIECES.format(cut="index.split(index.size(0) // world)"),
    "another monitor": MONITOR.format(only="True", monitor="loss"),
    "a monitor of all ranks": MONITOR.format(only="False", monitor="val/loss"),
    "a sampler of the group": SAMPLER.format(
        group="mpu.data_parallel_group()", option=", num_replicas=2, rank=0"
    ),
    "a group that is no replica": SAMPLER.format(group="None", option=""),
    "a number for a report": "x = torch.ones(1)\ntotal = 0.0\ndist.all_reduce(x)\n"
    "total += (x * rank).item()\n",
}
KINDS = ("habit-state", "bare", "branch", "shape", "loop", "habit-branch", "habit-sampler", "state")


def found(text):
    program = program_from_sources({"main": ("main.py", HEAD + text)})
    return [each.kind for each in program.analyze() if each.kind in KINDS]


@pytest.mark.parametrize("name", DIFFER)
def test_ranks_differ(name):
    assert found(DIFFER[name])


@pytest.mark.parametrize("name", ALIKE)
def test_ranks_are_alike(name):
    assert found(ALIKE[name]) == []
