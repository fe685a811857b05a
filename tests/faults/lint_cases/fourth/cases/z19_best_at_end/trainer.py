import logging
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

logger = logging.getLogger(__name__)


class Trainer:
    def __init__(self, model, args, train_dataset, eval_dataset, loss_fn):
        self.args = args
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.device = torch.device("cuda", self.local_rank)
        self.model = DistributedDataParallel(model.to(self.device), device_ids=[self.local_rank])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.learning_rate)
        self.train_sampler = DistributedSampler(train_dataset)
        self.train_loader = DataLoader(train_dataset, args.batch_size, sampler=self.train_sampler)
        sampler = DistributedSampler(eval_dataset, shuffle=False)
        self.eval_loader = DataLoader(eval_dataset, args.batch_size, sampler=sampler)
        self.loss_fn = loss_fn
        self.best_metric = None
        self.best_checkpoint = None

    def is_world_process_zero(self):
        return dist.get_rank() == 0

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        totals = torch.zeros(2, device=self.device)
        for x, y in self.eval_loader:
            totals[0] += self.loss_fn(self.model(x.to(self.device)), y.to(self.device))
            totals[1] += 1
        dist.all_reduce(totals)
        self.model.train()
        return (totals[0] / totals[1]).item()

    def _save_checkpoint(self, epoch, metric):
        folder = os.path.join(self.args.output_dir, f"checkpoint-{epoch}")
        if self.best_metric is None or metric < self.best_metric:
            self.best_metric = metric
            self.best_checkpoint = folder
        if self.is_world_process_zero():
            os.makedirs(folder, exist_ok=True)
            torch.save(self.model.module.state_dict(), os.path.join(folder, "model.bin"))
            torch.save(self.optimizer.state_dict(), os.path.join(folder, "optimizer.pt"))

    def _load_best(self):
        logger.info("loading best model from %s (%s)", self.best_checkpoint, self.best_metric)
        path = os.path.join(self.best_checkpoint, "model.bin")
        self.model.module.load_state_dict(torch.load(path, map_location=self.device))

    def train(self):
        for epoch in range(self.args.epochs):
            self.train_sampler.set_epoch(epoch)
            for x, y in self.train_loader:
                loss = self.loss_fn(self.model(x.to(self.device)), y.to(self.device))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            self._save_checkpoint(epoch, self.evaluate())
        if self.args.load_best_model_at_end and self.best_checkpoint is not None:
            self._load_best()
        return self.best_metric
