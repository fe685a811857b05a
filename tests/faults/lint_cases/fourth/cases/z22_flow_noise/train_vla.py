import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from modeling import ActionExpert
from utils import set_seed, setup


class Episodes(Dataset):
    def __init__(self, path):
        self.observations, self.actions = torch.load(path)

    def __len__(self):
        return len(self.actions)

    def __getitem__(self, i):
        return self.observations[i], self.actions[i]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="episodes.pt")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    device = setup()
    set_seed(args.seed)
    data = Episodes(args.data)
    sampler = DistributedSampler(data, seed=args.seed, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, num_workers=4, drop_last=True)
    model = DistributedDataParallel(ActionExpert().to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for observation, actions in loader:
            loss = model(observation.to(device), actions.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
