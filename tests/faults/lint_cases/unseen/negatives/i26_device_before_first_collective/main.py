import argparse
import os
import tempfile
from pathlib import Path

import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import comm
from launch import launch


def node_scratch() -> Path:
    """Folder on this machine's own disk, filled by its first process."""
    root = Path(tempfile.gettempdir()) / f"scratch_{os.environ.get('MASTER_PORT', '0')}"
    if comm.get_local_rank() == 0:
        root.mkdir(parents=True, exist_ok=True)
        x = torch.randn(256, 8, generator=torch.Generator().manual_seed(6))
        torch.save({"x": x, "y": x.cos().sum(1, keepdim=True)}, root / "data.tmp")
        os.replace(root / "data.tmp", root / "data.pt")
    comm.synchronize_machine()
    return root


def build(device):
    net = nn.Sequential(nn.Linear(8, 32), nn.ELU(), nn.Linear(32, 1)).to(device)
    if comm.get_world_size() == 1:
        return net, net
    ddp = DistributedDataParallel(net, device_ids=[device.index] if device.type == "cuda" else None)
    return ddp, net


def run(device, args):
    tensors = torch.load(node_scratch() / "data.pt")
    data = TensorDataset(tensors["x"], tensors["y"])
    sampler = DistributedSampler(data) if comm.get_world_size() > 1 else None
    loader = DataLoader(data, batch_size=16, sampler=sampler, shuffle=sampler is None)
    model, net = build(device)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for x, y in loader:
            loss = (model(x.to(device)) - y.to(device)).pow(2).mean()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
        last = comm.mean(loss)
        if comm.get_rank() == 0:
            print(f"epoch {epoch} loss {last.item():.4f}")
    if comm.get_rank() == 0:
        torch.save(net.state_dict(), args.out + ".tmp")
        os.replace(args.out + ".tmp", args.out)
    print(f"process {comm.get_local_rank()} of machine {comm.get_machine_rank()} done")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--out", default="regressor.pt")
    launch(run, parser.parse_args())
