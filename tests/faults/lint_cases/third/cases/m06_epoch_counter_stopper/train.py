import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from epoch_loop import EpochCounterWithStopper


def if_main_process():
    return int(os.environ["RANK"]) == 0


def run_on_main(func, args=()):
    """Runs a function on the main process; the others wait."""
    if if_main_process():
        func(*args)
    dist.barrier()


class G2PBrain:
    def __init__(self, modules, epoch_counter, device, save_dir="results"):
        self.modules = DDP(modules.to(device), device_ids=[device.index])
        self.epoch_counter = epoch_counter
        self.device = device
        self.save_dir = save_dir
        self.optimizer = torch.optim.Adam(self.modules.parameters(), lr=1e-3)

    def compute_objectives(self, batch, model):
        feats, target = (t.to(self.device) for t in batch)
        return nn.functional.cross_entropy(model(feats), target)

    def save_checkpoint(self, epoch, loss):
        os.makedirs(self.save_dir, exist_ok=True)
        state = {"model": self.modules.module.state_dict(), "epoch": epoch, "loss": loss}
        torch.save(state, os.path.join(self.save_dir, "model.ckpt"))

    def on_valid_end(self, valid_loss, epoch):
        if if_main_process():
            print(f"epoch {epoch} valid loss {valid_loss:.4f}")
            self.epoch_counter.update_metric(valid_loss)
        run_on_main(self.save_checkpoint, args=(epoch, valid_loss))

    @torch.no_grad()
    def valid_loss(self, valid_loader):
        self.modules.eval()
        total = torch.zeros(2, device=self.device)
        for batch in valid_loader:
            total[0] += self.compute_objectives(batch, self.modules.module)
            total[1] += 1
        dist.all_reduce(total)
        return (total[0] / total[1]).item()

    def fit(self, train_loader, valid_loader):
        for epoch in self.epoch_counter:
            train_loader.sampler.set_epoch(epoch)
            self.modules.train()
            for batch in train_loader:
                self.optimizer.zero_grad()
                self.compute_objectives(batch, self.modules).backward()
                self.optimizer.step()
            self.on_valid_end(self.valid_loss(valid_loader), epoch)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(1234)
    sets = [TensorDataset(torch.randn(n, 40), torch.randint(0, 44, (n,))) for n in (8000, 800)]
    train_loader = DataLoader(sets[0], batch_size=32, sampler=DistributedSampler(sets[0]))
    valid_loader = DataLoader(sets[1], batch_size=32, sampler=DistributedSampler(sets[1], shuffle=False))
    counter = EpochCounterWithStopper(limit=50, limit_to_stop=5, limit_warmup=3)
    modules = nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 44))
    brain = G2PBrain(modules, counter, torch.device("cuda", local_rank))
    brain.fit(train_loader, valid_loader)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
