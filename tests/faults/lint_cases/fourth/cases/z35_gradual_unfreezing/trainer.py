import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, model, loader, hooks, device, lr=1e-3):
        self.rank = dist.get_rank()
        self.device = device
        self.hooks = hooks
        self.loader = loader
        self.model = self.wrap(model.to(device))
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

    def wrap(self, model):
        return DDP(model, device_ids=[self.device.index])

    def call(self, name, *args):
        for hook in self.hooks:
            getattr(hook, name)(self, *args)

    def fit(self, epochs):
        for epoch in range(epochs):
            self.call("before_epoch", epoch)
            self.loader.sampler.set_epoch(epoch)
            totals = torch.zeros(2, device=self.device)
            for images, labels in self.loader:
                logits = self.model(images.to(self.device))
                loss = nn.functional.cross_entropy(logits, labels.to(self.device))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                totals += torch.stack([loss.detach(), torch.ones_like(loss)])
            dist.all_reduce(totals)
            self.call("after_epoch", epoch, {"loss": (totals[0] / totals[1]).item()})
