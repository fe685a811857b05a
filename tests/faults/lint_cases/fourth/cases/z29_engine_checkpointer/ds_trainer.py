import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class DeepspeedTrainer:
    def __init__(self, model, config, dataset, checkpointer=None, num_epochs=5):
        deepspeed.init_distributed()
        self.model = model
        self.engine, _, _, _ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=config
        )
        self._rank = dist.get_rank()
        self._master = self._rank == 0
        self._checkpointer = checkpointer
        self.num_epochs = num_epochs
        self.metrics = {}
        self.sampler = DistributedSampler(dataset, drop_last=True)
        self.loader = DataLoader(
            dataset, batch_size=self.engine.train_micro_batch_size_per_gpu(), sampler=self.sampler, drop_last=True
        )

    def _train_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        self.engine.train()
        total = torch.zeros(2, device=self.engine.device)
        for x, y in self.loader:
            logits = self.engine(x.to(self.engine.device))
            loss = nn.functional.cross_entropy(logits, y.to(self.engine.device))
            self.engine.backward(loss)
            self.engine.step()
            total += torch.stack([loss.detach(), torch.ones_like(loss)])
        dist.all_reduce(total)
        return (total[0] / total[1]).item()

    def train(self):
        for epoch in range(self.num_epochs):
            self.metrics["train_loss"] = self._train_epoch(epoch)
            if self._master:
                print(f"epoch {epoch}: {self.metrics}")
            if self._master and self._checkpointer is not None and self._checkpointer.should_save(epoch):
                self._checkpointer.save(epoch, self)
        return self.metrics
