import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from metrics import draft_metrics, finalize


class Trainer:
    def __init__(self, model, args, device):
        self.device = device
        self.args = args
        self.model = DistributedDataParallel(model.to(device), device_ids=[device.index])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)

    def _run(self, net, batch):
        hidden, targets, mask = (t.to(self.device, non_blocking=True) for t in batch)
        return draft_metrics(net(hidden.float()), targets, mask.bool())

    def train_epoch(self, loader, epoch):
        loader.sampler.set_epoch(epoch)
        self.model.train()
        for step, batch in enumerate(loader):
            loss, _ = self._run(self.model, batch)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % 100 == 0 and dist.get_rank() == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")

    @torch.no_grad()
    def val_epoch(self, loader, epoch):
        self.model.eval()
        totals = {}
        for batch in loader:
            _, metrics = self._run(self.model.module, batch)
            for value in metrics.values():
                dist.all_reduce(value, op=dist.ReduceOp.SUM)
            for name, value in metrics.items():
                totals[name] = totals.get(name, 0.0) + value
        result = finalize(totals)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} val {result}")
        return result
