import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trainer_utils import RandomCropFlip, seed_worker, set_seed


class Images(Dataset):
    def __init__(self, n, num_labels, transform, seed):
        gen = torch.Generator().manual_seed(seed)
        self.images = torch.randn(n, 3, 40, 40, generator=gen)
        self.labels = torch.randint(0, num_labels, (n,), generator=gen)
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.transform(self.images[index]), self.labels[index]


class Trainer:
    def __init__(self, args, model, train_dataset):
        self.args = args
        self.train_dataset = train_dataset
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        self.model = DDP(model.to(self.device), device_ids=[self.device.index])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.learning_rate)

    def get_train_dataloader(self):
        sampler = DistributedSampler(self.train_dataset, shuffle=True, seed=self.args.seed)
        loader_params = {
            "batch_size": self.args.per_device_train_batch_size,
            "sampler": sampler,
            "num_workers": self.args.dataloader_num_workers,
            "pin_memory": True,
            "drop_last": True,
            "worker_init_fn": seed_worker,
        }
        return DataLoader(self.train_dataset, **loader_params), sampler

    def train(self):
        loader, sampler = self.get_train_dataloader()
        for epoch in range(self.args.num_train_epochs):
            sampler.set_epoch(epoch)
            self.model.train()
            for step, (pixels, labels) in enumerate(loader):
                logits = self.model(pixels.to(self.device, non_blocking=True))
                loss = F.cross_entropy(logits, labels.to(self.device, non_blocking=True))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                if step % self.args.logging_steps == 0 and dist.get_rank() == 0:
                    print({"epoch": epoch, "step": step, "loss": round(loss.item(), 4)})

    def save_model(self):
        if dist.get_rank() == 0:
            os.makedirs(self.args.output_dir, exist_ok=True)
            torch.save(self.model.module.state_dict(), os.path.join(self.args.output_dir, "model.pt"))
        dist.barrier()


def build_model(num_labels):
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, stride=2), nn.GELU(), nn.Conv2d(64, 128, 3, stride=2), nn.GELU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, num_labels),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", default="out/vit")
    parser.add_argument("--num_labels", type=int, default=10)
    parser.add_argument("--per_device_train_batch_size", type=int, default=32)
    parser.add_argument("--dataloader_num_workers", type=int, default=4)
    parser.add_argument("--learning_rate", type=float, default=5e-4)
    parser.add_argument("--num_train_epochs", type=int, default=10)
    parser.add_argument("--logging_steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    set_seed(args.seed)
    dataset = Images(20000, args.num_labels, RandomCropFlip(32), args.seed)
    trainer = Trainer(args, build_model(args.num_labels), dataset)
    trainer.train()
    trainer.save_model()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
