import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from losses import DDPLoss


class Structures(Dataset):
    """Catalyst-like systems with between 20 and 220 atoms."""

    def __init__(self, n, seed):
        gen = torch.Generator().manual_seed(seed)
        self.sizes = torch.randint(20, 221, (n,), generator=gen).tolist()
        self.seed = seed

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        gen = torch.Generator().manual_seed(self.seed * 100003 + index)
        natoms = self.sizes[index]
        pos = torch.randn(natoms, 3, generator=gen)
        z = torch.randint(1, 90, (natoms,), generator=gen)
        energy = pos.pow(2).sum() / natoms
        return {"pos": pos, "z": z, "energy": energy, "forces": -2.0 * pos / natoms}


def collate(items):
    batch_index = torch.cat([torch.full((len(s["z"]),), i) for i, s in enumerate(items)])
    out = {key: torch.cat([s[key] for s in items]) for key in ("pos", "z", "forces")}
    out["energy"] = torch.stack([s["energy"] for s in items])
    out["batch"] = batch_index
    return out


class ForceField(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.species = nn.Embedding(100, width)
        self.trunk = nn.Sequential(nn.Linear(width + 3, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.energy = nn.Linear(width, 1)
        self.force = nn.Linear(width, 3)

    def forward(self, pos, z, batch, num_systems):
        h = self.trunk(torch.cat([self.species(z), pos], dim=-1))
        per_atom = self.energy(h).squeeze(-1)
        energy = torch.zeros(num_systems, device=pos.device).index_add_(0, batch, per_atom)
        return energy, self.force(h)


def main(args):
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(args.seed)

    dataset = Structures(args.num_systems, args.seed)
    sampler = DistributedSampler(dataset, shuffle=True, seed=args.seed)
    loader = DataLoader(
        dataset, args.batch_size, sampler=sampler, collate_fn=collate, drop_last=True, num_workers=2
    )
    model = DDP(ForceField(args.width).to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    energy_loss, force_loss = DDPLoss("mae"), DDPLoss("l2mae")

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, batch in enumerate(loader):
            batch = {k: v.to(device, non_blocking=True) for k, v in batch.items()}
            energy, forces = model(batch["pos"], batch["z"], batch["batch"], len(batch["energy"]))
            loss = args.energy_coefficient * energy_loss(energy, batch["energy"])
            loss = loss + args.force_coefficient * force_loss(forces, batch["forces"])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            if step % 50 == 0 and dist.get_rank() == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")

    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), args.checkpoint)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-systems", type=int, default=20000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--energy-coefficient", type=float, default=1.0)
    parser.add_argument("--force-coefficient", type=float, default=100.0)
    parser.add_argument("--checkpoint", default="forcefield.pt")
    parser.add_argument("--seed", type=int, default=3)
    main(parser.parse_args())
