import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WORKING, FINISHED, FAILED = 0, 1, 2


class Heartbeat:
    """Lets the ranks that do not evaluate follow the one that does."""

    def __init__(self):
        self.group = dist.new_group(backend="gloo")
        self.state = torch.zeros(1, dtype=torch.int64)

    def send(self, state):
        self.state.fill_(state)
        dist.broadcast(self.state, src=0, group=self.group)

    def follow(self):
        self.state.fill_(WORKING)
        while self.state.item() == WORKING:
            dist.broadcast(self.state, src=0, group=self.group)
        return self.state.item()


class Engine:
    def __init__(self, args, device):
        self.args, self.device = args, device
        self.rank = dist.get_rank()
        self.heartbeat = Heartbeat()
        net = nn.Sequential(nn.Linear(args.features, 512), nn.ReLU(), nn.Linear(512, args.classes))
        self.model = DistributedDataParallel(net.to(device), device_ids=[device.index])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=args.lr, momentum=0.9)

    def train(self, loader, epoch):
        loader.sampler.set_epoch(epoch)
        self.model.train()
        for x, y in loader:
            loss = F.cross_entropy(self.model(x.to(self.device)), y.to(self.device))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def evaluate(self, loader):
        score = None
        if self.rank == 0:
            state = FAILED
            try:
                score = self._accuracy(loader)
                state = FINISHED
            finally:
                self.heartbeat.send(state)
        elif self.heartbeat.follow() == FAILED:
            raise RuntimeError("evaluation failed on rank 0")
        box = [score]
        dist.broadcast_object_list(box, src=0, group=self.heartbeat.group)
        return box[0]

    @torch.no_grad()
    def _accuracy(self, loader):
        net = self.model.module
        net.eval()
        right = seen = 0
        for x, y in loader:
            self.heartbeat.send(WORKING)
            right += (net(x.to(self.device)).argmax(1).cpu() == y).sum().item()
            seen += len(y)
        return right / max(seen, 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--features", type=int, default=80)
    parser.add_argument("--classes", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    blob = torch.load(args.data, map_location="cpu")
    train, dev = TensorDataset(*blob["train"]), TensorDataset(*blob["dev"])
    loader = DataLoader(train, 128, sampler=DistributedSampler(train), drop_last=True)
    engine = Engine(args, torch.device("cuda", torch.cuda.current_device()))
    best = 0.0
    for epoch in range(args.epochs):
        engine.train(loader, epoch)
        score = engine.evaluate(DataLoader(dev, 512))
        if score <= best:
            for group in engine.optimizer.param_groups:
                group["lr"] *= 0.5
        elif engine.rank == 0:
            torch.save(engine.model.module.state_dict(), "best.pt")
        best = max(best, score)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
