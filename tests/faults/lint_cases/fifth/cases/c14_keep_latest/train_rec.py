import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from callbacks import CheckpointEveryEpoch, PublishLatest
from ckpt_utils import get_latest_checkpoint_path


class TwoTower(nn.Module):
    def __init__(self, users, items, dim=64):
        super().__init__()
        self.user, self.item = nn.Embedding(users, dim), nn.Embedding(items, dim)

    def forward(self, user, item):
        return (self.user(user) * self.item(item)).sum(-1)


class Trainer:
    def __init__(self, args, device):
        self.device, self.epoch, self.step = device, 0, 0
        blob = torch.load(args.clicks)
        data = TensorDataset(blob["user"], blob["item"], blob["label"].float())
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, 4096, sampler=self.sampler)
        net = TwoTower(int(blob["users"]), int(blob["items"])).to(device)
        latest = get_latest_checkpoint_path(args.ckpt_dir)
        state = torch.load(os.path.join(latest, "state.pt"), map_location=device) if latest else None
        if state:
            net.load_state_dict(state["model"])
            self.epoch, self.step = state["epoch"] + 1, state["step"]
        self.model = DistributedDataParallel(net, device_ids=[device.index])
        self.optimizer = torch.optim.Adagrad(self.model.parameters(), lr=0.02)
        if state:
            self.optimizer.load_state_dict(state["optim"])
        self.callbacks = [CheckpointEveryEpoch(args.ckpt_dir), PublishLatest(args.ckpt_dir, args.publish_dir, 2)]

    def fit(self, epochs):
        while self.epoch < epochs:
            self.sampler.set_epoch(self.epoch)
            for user, item, label in self.loader:
                score = self.model(user.to(self.device), item.to(self.device))
                loss = F.binary_cross_entropy_with_logits(score, label.to(self.device))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.step += 1
            for callback in self.callbacks:
                callback.on_train_epoch_end(self)
            self.epoch += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clicks", required=True)
    parser.add_argument("--ckpt-dir", default="ckpt")
    parser.add_argument("--publish-dir", default="publish")
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    Trainer(args, device).fit(10)
    dist.destroy_process_group()
