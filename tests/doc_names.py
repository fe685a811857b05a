"""Names that code fragments of the documentation use without defining them.

``tests/doc_pages.py`` executes this file once per page, as one rank of a job of one. Fragments of a
page see these names, and those of the fragments above them.
"""

# ruff: noqa: F401 - for the fragments
import contextlib
import logging
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import holdfast

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
log = logging.getLogger(__name__)

# ---- a model and its data

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
dataset = held_out = TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=16, sampler=sampler)
batches, loaders = list(loader), {"held-out": DataLoader(dataset, batch_size=16)}
loss_function = torch.nn.functional.cross_entropy
rank, step, steps, epochs = dist.get_rank(), 1, 3, 1
loss, accuracy, tensor = torch.tensor(1.0), torch.tensor(0.5), torch.ones(8)


def loss_sum(logits, targets):
    return loss_function(logits, targets, reduction="sum")


def metrics(model, batch):
    inputs, targets = batch
    return {"loss": (loss_sum(model(inputs), targets), len(targets))}


def train(batch):
    loss_function(model(batch[0]), batch[1]).backward()
