import argparse
import copy
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from seeding import seed_process, seed_worker, shared_split


class MaskedAutoencoder(nn.Module):
    def __init__(self, patches, patch_dim, dim):
        super().__init__()
        self.inp = nn.Linear(patch_dim, dim)
        self.pos = nn.Parameter(torch.randn(1, patches, dim) * 0.02)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dim))
        layer = nn.TransformerEncoderLayer(dim, 8, 4 * dim, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4)
        self.out = nn.Linear(dim, patch_dim)

    def forward(self, x, mask):
        hidden = torch.where(mask.unsqueeze(-1), self.mask_token, self.inp(x))
        return self.out(self.encoder(hidden + self.pos))


class Trainer:
    def __init__(self, args, device):
        self.args, self.device = args, device
        net = MaskedAutoencoder(args.patches, args.patch_dim, args.dim).to(device)
        self.model = DistributedDataParallel(net, device_ids=[device.index])
        self.ema = copy.deepcopy(self.model.module).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)

    def _masked_loss(self, net, x):
        mask = torch.rand(x.shape[:2], device=x.device) < self.args.mask_ratio
        error = (net(x, mask) - x).pow(2).mean(-1)
        return (error * mask).sum() / mask.sum().clamp(min=1)

    def train_epoch(self, loader, epoch):
        self.model.train()
        loader.sampler.set_epoch(epoch)
        for (x,) in loader:
            loss = self._masked_loss(self.model, x.to(self.device))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            with torch.no_grad():
                for target, source in zip(self.ema.parameters(), self.model.module.parameters()):
                    target.lerp_(source, 1 - self.args.ema)

    @torch.no_grad()
    def validate(self, loader):
        self.ema.eval()
        totals = torch.zeros(2, device=self.device)
        for (x,) in loader:
            error = self._masked_loss(self.ema, x.to(self.device))
            totals += torch.stack([error * len(x), totals.new_tensor(len(x))])
        dist.all_reduce(totals)
        return (totals[0] / totals[1].clamp(min=1)).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    for name, value in (("patches", 196), ("patch-dim", 768), ("dim", 512), ("batch-size", 64), ("epochs", 100),
                        ("seed", 31)):
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, value in (("lr", 1.5e-4), ("ema", 0.999), ("mask-ratio", 0.75)):
        parser.add_argument(f"--{name}", type=float, default=value)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    seed_process(args.seed, rank, size)
    data = TensorDataset(torch.load(args.data, map_location="cpu"))
    fit, held_out = shared_split(len(data), 0.95, args.seed)
    train, val = Subset(data, fit), Subset(data, held_out[rank::size])
    sampler = DistributedSampler(train, seed=args.seed, drop_last=True)
    loader = DataLoader(train, args.batch_size, sampler=sampler, num_workers=4, worker_init_fn=seed_worker,
                        drop_last=True)
    trainer = Trainer(args, torch.device("cuda", torch.cuda.current_device()))
    for epoch in range(args.epochs):
        trainer.train_epoch(loader, epoch)
        value = trainer.validate(DataLoader(val, args.batch_size))
        if rank == 0:
            print(f"epoch {epoch} masked error {value:.5f}")
            torch.save(trainer.ema.state_dict(), "mae_ema.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
