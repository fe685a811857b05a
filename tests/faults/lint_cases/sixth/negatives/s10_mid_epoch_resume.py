import argparse
import glob
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Sampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class ResumableBatches(Sampler):
    def __init__(self, sampler, batch_size):
        self.sampler, self.batch_size = sampler, batch_size
        self.per_epoch = len(sampler) // batch_size
        self.skip = 0

    def start_epoch(self, epoch, skip=0):
        self.sampler.set_epoch(epoch)
        self.skip = skip

    def __len__(self):
        return self.per_epoch - self.skip

    def __iter__(self):
        indices = list(self.sampler)
        for b in range(self.skip, self.per_epoch):
            yield indices[b * self.batch_size:(b + 1) * self.batch_size]


class Trainer:
    def __init__(self, args, dataset, device):
        self.args, self.device = args, device
        self.rank = dist.get_rank()
        self.batches = ResumableBatches(DistributedSampler(dataset, seed=args.seed, drop_last=True), args.batch_size)
        self.loader = DataLoader(dataset, batch_sampler=self.batches, num_workers=2)
        net = nn.Sequential(nn.Linear(args.features, 1024), nn.GELU(), nn.Linear(1024, args.classes))
        self.model = DistributedDataParallel(net.to(device), device_ids=[device.index])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=args.lr, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, args.epochs * self.batches.per_epoch)
        self.scaler = torch.amp.GradScaler("cuda")
        self.step = 0

    def parts(self):
        return {"model": self.model.module, "optimizer": self.optimizer, "scheduler": self.scheduler,
                "scaler": self.scaler}

    def save(self):
        if self.rank == 0:
            state = {name: part.state_dict() for name, part in self.parts().items()}
            path = os.path.join(self.args.out, f"step_{self.step:08d}.pt")
            torch.save({**state, "step": self.step}, path + ".tmp")
            os.replace(path + ".tmp", path)
        dist.barrier()

    def resume(self):
        box = [None]
        if self.rank == 0:
            os.makedirs(self.args.out, exist_ok=True)
            box[0] = max(glob.glob(os.path.join(self.args.out, "step_*.pt")), default=None)
        dist.broadcast_object_list(box, src=0)
        if box[0] is None:
            return
        state = torch.load(box[0], map_location="cpu")
        for name, part in self.parts().items():
            part.load_state_dict(state[name])
        self.step = state["step"]

    def train(self):
        first, skip = divmod(self.step, self.batches.per_epoch)
        for epoch in range(first, self.args.epochs):
            self.batches.start_epoch(epoch, skip if epoch == first else 0)
            for x, y in self.loader:
                with torch.autocast("cuda", torch.float16):
                    loss = F.cross_entropy(self.model(x.to(self.device)), y.to(self.device))
                self.optimizer.zero_grad()
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.scheduler.step()
                self.step += 1
                if self.step % self.args.save_every == 0:
                    self.save()
            if self.rank == 0:
                print(f"epoch {epoch} step {self.step} loss {loss.item():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--out", default="run")
    for name, value in (("features", 300), ("classes", 50), ("batch-size", 64), ("epochs", 20), ("save-every", 200),
                        ("seed", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    trainer = Trainer(args, TensorDataset(*torch.load(args.data, map_location="cpu")), torch.device("cuda", local_rank))
    trainer.resume()
    trainer.train()
    trainer.save()
    dist.destroy_process_group()
