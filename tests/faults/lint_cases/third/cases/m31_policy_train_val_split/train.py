import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from factory import make_dataset
from random_utils import set_seed


class Policy(nn.Module):
    def __init__(self, obs=64, horizon=16, act=7):
        super().__init__()
        self.shape = (horizon, act)
        self.net = nn.Sequential(nn.Linear(obs, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, horizon * act))

    def forward(self, obs):
        return self.net(obs).view(-1, *self.shape)


@torch.no_grad()
def validate(accelerator, model, loader):
    model.eval()
    total, count = torch.zeros(1, device=accelerator.device), torch.zeros(1, device=accelerator.device)
    for batch in loader:
        total += (model(batch["obs"]) - batch["actions"]).pow(2).mean()
        count += 1
    total, count = accelerator.reduce(total), accelerator.reduce(count)
    model.train()
    return (total / count).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--val_split_ratio", type=float, default=0.02)
    parser.add_argument("--epochs", type=int, default=10)
    cfg = parser.parse_args()
    accelerator = Accelerator()
    set_seed(cfg.seed, accelerator=accelerator)
    train_set, val_set = make_dataset(cfg)
    model = Policy()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2.5e-5)
    train_loader = DataLoader(train_set, batch_size=32, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=32)
    model, optimizer, train_loader, val_loader = accelerator.prepare(model, optimizer, train_loader, val_loader)
    for epoch in range(cfg.epochs):
        for batch in train_loader:
            loss = nn.functional.mse_loss(model(batch["obs"]), batch["actions"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.print(f"epoch {epoch} validation loss {validate(accelerator, model, val_loader):.5f}")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), "policy.pt")


if __name__ == "__main__":
    main()
