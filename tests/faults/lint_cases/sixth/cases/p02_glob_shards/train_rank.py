import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from datasets import NpyTableReader


class WideDeep(nn.Module):
    def __init__(self, num_features, hidden):
        super().__init__()
        self.wide = nn.Linear(num_features, 1)
        self.deep = nn.Sequential(nn.Linear(num_features, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, x):
        return (self.wide(x) + self.deep(x)).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train-input-path", required=True, help="e.g. /data/criteo/part-*.npy")
    parser.add_argument("--num-features", type=int, default=39)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--model-dir", default="experiments/wide_deep")
    args = parser.parse_args()

    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)

    reader = NpyTableReader(args.train_input_path, args.batch_size)
    loader = DataLoader(reader, batch_size=None, num_workers=0)
    model = DDP(WideDeep(args.num_features, args.hidden).to(device), device_ids=[device.index])
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    criterion = nn.BCEWithLogitsLoss()

    for epoch in range(args.epochs):
        for step, rows in enumerate(loader):
            rows = rows.to(device, non_blocking=True)
            loss = criterion(model(rows[:, 1:]), rows[:, 0])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if dist.get_rank() == 0 and step % 100 == 0:
                print(f"[epoch {epoch}] step {step} loss {loss.item():.5f}", flush=True)

    if dist.get_rank() == 0:
        os.makedirs(args.model_dir, exist_ok=True)
        torch.save(model.module.state_dict(), os.path.join(args.model_dir, "model.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
