import argparse
import os

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from cifar_data import accuracy, load_cifar
from net import CifarNet

DS_CONFIG = {
    "train_micro_batch_size_per_gpu": 128,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
    "zero_optimization": {"stage": 1},
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--local_rank", type=int, default=-1)
    args = parser.parse_args()

    deepspeed.init_distributed(dist_backend="nccl")
    dataset = load_cifar(args.data)
    net = CifarNet()
    engine, _, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=DS_CONFIG)
    sampler = DistributedSampler(dataset, seed=11)
    loader = DataLoader(dataset, engine.train_micro_batch_size_per_gpu(), sampler=sampler, num_workers=4)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        totals = torch.zeros(2, device=engine.device)
        for images, labels in loader:
            images, labels = images.to(engine.device), labels.to(engine.device)
            logits = engine(images)
            loss = F.cross_entropy(logits, labels)
            engine.backward(loss)
            engine.step()
            totals += torch.stack([loss.detach(), accuracy(logits.detach(), labels)])
        totals /= len(loader)
        dist.all_reduce(totals, op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {totals[0].item():.4f} accuracy {totals[1].item():.4f}")
    engine.save_checkpoint(os.path.join(args.data, "ckpt"))


if __name__ == "__main__":
    main()
