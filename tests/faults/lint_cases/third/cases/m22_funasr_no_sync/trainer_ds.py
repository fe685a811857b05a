import contextlib
import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, model, local_rank, accum_grad=4, grad_clip=5.0, output_dir="exp", max_epoch=50):
        self.device = torch.device("cuda", local_rank)
        self.model = DDP(model.to(self.device), device_ids=[local_rank])
        self.optim = torch.optim.Adam(self.model.parameters(), lr=2e-4)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optim, 1000, 0.9)
        self.accum_grad = accum_grad
        self.grad_clip = grad_clip
        self.output_dir = output_dir
        self.max_epoch = max_epoch
        self.rank = dist.get_rank()

    def save_checkpoint(self, epoch):
        if self.rank == 0:
            os.makedirs(self.output_dir, exist_ok=True)
            state = {"epoch": epoch, "state_dict": self.model.module.state_dict(), "optimizer": self.optim.state_dict()}
            torch.save(state, os.path.join(self.output_dir, f"model.pt.ep{epoch}"))
        dist.barrier()

    def forward_step(self, batch):
        speech, text = (t.to(self.device) for t in batch)
        return nn.functional.cross_entropy(self.model(speech).transpose(1, 2), text)

    def train_epoch(self, epoch, loader):
        self.model.train()
        self.optim.zero_grad()
        for batch_idx, batch in enumerate(loader):
            my_context = contextlib.nullcontext
            if batch_idx % self.accum_grad != 0:
                my_context = self.model.no_sync
            with my_context():
                loss = self.forward_step(batch)
                (loss / self.accum_grad).backward()

            if (batch_idx + 1) % self.accum_grad == 0:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.grad_clip)
                self.optim.step()
                self.scheduler.step()
                self.optim.zero_grad()
            if batch_idx % 100 == 0 and self.rank == 0:
                logging.info("epoch %d batch %d loss %.3f", epoch, batch_idx, loss.item())

    def run(self, loader):
        for epoch in range(self.max_epoch):
            loader.sampler.set_epoch(epoch)
            self.train_epoch(epoch, loader)
            self.save_checkpoint(epoch)
