import argparse
import itertools
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Acoustic(nn.Module):
    def __init__(self, mels=80, units=48):
        super().__init__()
        self.rnn = nn.GRU(mels, 384, num_layers=3, batch_first=True)
        self.out = nn.Linear(384, units)

    def forward(self, feats):
        return self.out(self.rnn(feats)[0]).log_softmax(-1)


class TargetStop:
    """Stops the job at a target loss or when nothing has improved for a while."""

    def __init__(self, target, patience):
        self.target, self.patience = target, patience
        self.best, self.waited = float("inf"), 0

    def __call__(self, loss):
        if loss < self.best:
            self.best, self.waited = loss, 0
        else:
            self.waited += 1
        return loss <= self.target or self.waited >= self.patience


@torch.no_grad()
def evaluate(model, loader, device, limit):
    net = model.module
    net.eval()
    sums = torch.zeros(2, device=device, dtype=torch.float64)
    for feats, labels in itertools.islice(loader, limit):
        logp = net(feats.to(device)).flatten(0, 1)
        labels = labels.to(device).flatten()
        keep = labels >= 0
        if keep.any():
            sums[0] += nn.functional.nll_loss(logp[keep], labels[keep], reduction="sum")
            sums[1] += keep.sum()
    dist.all_reduce(sums)
    net.train()
    return (sums[0] / sums[1]).item()


def make_loader(path, batch_size, shuffle):
    data = TensorDataset(*torch.load(path))
    return DataLoader(data, batch_size, sampler=DistributedSampler(data, shuffle=shuffle), drop_last=shuffle)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", required=True)
    parser.add_argument("--valid", required=True)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--target", type=float, default=0.9)
    parser.add_argument("--patience", type=int, default=6)
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    model = DistributedDataParallel(Acoustic().to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    train_loader = make_loader(args.train, 16, True)
    valid_loader = make_loader(args.valid, 16, False)
    stop = TargetStop(args.target, args.patience)
    for epoch in range(args.epochs):
        train_loader.sampler.set_epoch(epoch)
        for feats, labels in train_loader:
            logp = model(feats.to(device)).flatten(0, 1)
            loss = nn.functional.nll_loss(logp, labels.to(device).flatten(), ignore_index=-1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        valid = evaluate(model, valid_loader, device, 200)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} valid {valid:.4f}")
            if valid < stop.best:
                torch.save(model.module.state_dict(), "best.pt")
        if stop(valid):
            break
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"best {stop.best:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
