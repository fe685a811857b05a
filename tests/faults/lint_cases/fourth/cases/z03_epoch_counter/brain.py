import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Brain:
    def __init__(self, module, opt_class, hparams):
        self.hparams = hparams
        self.local_rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(self.local_rank)
        dist.init_process_group("nccl")
        self.device = torch.device("cuda", self.local_rank)
        self.module = DDP(module.to(self.device), device_ids=[self.local_rank])
        self.optimizer = opt_class(self.module.parameters())

    @property
    def is_main(self):
        return dist.get_rank() == 0

    def compute_loss(self, batch):
        raise NotImplementedError

    def on_stage_end(self, stage, loss, epoch):
        pass

    def fit_batch(self, batch):
        loss = self.compute_loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def evaluate(self, loader):
        self.module.eval()
        total = torch.zeros(2, device=self.device)
        for batch in loader:
            total[0] += self.compute_loss(batch)
            total[1] += 1
        dist.all_reduce(total)
        return (total[0] / total[1]).item()

    def fit(self, epoch_counter, train_loader, valid_loader):
        for epoch in epoch_counter:
            train_loader.sampler.set_epoch(epoch)
            self.module.train()
            for batch in train_loader:
                loss = self.fit_batch(batch)
            valid_loss = self.evaluate(valid_loader)
            if self.is_main:
                self.on_stage_end("train", loss.item(), epoch)
                self.on_stage_end("valid", valid_loss, epoch)
