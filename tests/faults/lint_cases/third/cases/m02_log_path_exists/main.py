import argparse
import logging
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def is_master(args):
    return args.rank == 0


def init_distributed_device(args):
    args.rank = int(os.environ.get("RANK", 0))
    args.local_rank = int(os.environ.get("LOCAL_RANK", 0))
    args.world_size = int(os.environ.get("WORLD_SIZE", 1))
    args.distributed = args.world_size > 1
    if args.distributed:
        torch.cuda.set_device(args.local_rank)
        dist.init_process_group(backend="nccl", init_method="env://")
    return torch.device("cuda", args.local_rank)


def broadcast_object(args, obj, src=0):
    objects = [obj if args.rank == src else None]
    dist.broadcast_object_list(objects, src=src)
    return objects[0]


def get_latest_checkpoint(path):
    if not os.path.isdir(path):
        return None
    checkpoints = sorted(f for f in os.listdir(path) if f.endswith(".pt"))
    return os.path.join(path, checkpoints[-1]) if checkpoints else None


def train_one_epoch(model, loader, optimizer, device):
    model.train()
    for images, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images.to(device)), targets.to(device))
        loss.backward()
        optimizer.step()


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--logs", default="./logs")
    parser.add_argument("--name", required=True)
    parser.add_argument("--resume", default=None)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args(argv)

    device = init_distributed_device(args)
    log_base_path = os.path.join(args.logs, args.name)
    args.checkpoint_path = os.path.join(log_base_path, "checkpoints")
    resume_latest = args.resume == "latest"
    args.log_path = None
    if is_master(args):
        args.log_path = os.path.join(log_base_path, "out.log")
        if os.path.exists(args.log_path) and not resume_latest:
            print("Error. Experiment already exists. Use --name {} to specify a new experiment.")
            return -1
        os.makedirs(args.checkpoint_path, exist_ok=True)
        logging.basicConfig(filename=args.log_path, level=logging.INFO)

    resume_from = None
    if resume_latest:
        if is_master(args):
            resume_from = get_latest_checkpoint(args.checkpoint_path)
        if args.distributed:
            resume_from = broadcast_object(args, resume_from)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)).to(device)
    start_epoch = 0
    if resume_from is not None:
        checkpoint = torch.load(resume_from, map_location="cpu")
        model.load_state_dict(checkpoint["state_dict"])
        start_epoch = checkpoint["epoch"]
    if args.distributed:
        model = DistributedDataParallel(model, device_ids=[args.local_rank])
    dataset = TensorDataset(torch.randn(1024, 3, 32, 32), torch.randint(0, 10, (1024,)))
    sampler = DistributedSampler(dataset) if args.distributed else None
    loader = DataLoader(dataset, batch_size=32, sampler=sampler, shuffle=sampler is None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for epoch in range(start_epoch, args.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        train_one_epoch(model, loader, optimizer, device)
        if is_master(args):
            raw = model.module if args.distributed else model
            state = {"epoch": epoch + 1, "state_dict": raw.state_dict()}
            torch.save(state, os.path.join(args.checkpoint_path, f"epoch_{epoch + 1:04d}.pt"))

    if args.distributed:
        dist.barrier()
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
