"""Graph regression on molecules, some of which are broken; a step is skipped where any rank's batch is."""
import logging
import os
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("molecules")
ATOMS, WIDTH = 9, 24


class Molecule(NamedTuple):
    atoms: torch.Tensor
    bonds: torch.Tensor
    energy: torch.Tensor


class BrokenMolecule(ValueError):
    pass


class MoleculeStream:
    def __init__(self, seed, broken=0.03):
        self.gen = torch.Generator().manual_seed(seed)
        self.broken = broken

    def _one(self):
        n = int(torch.randint(4, 12, (1,), generator=self.gen))
        atoms = torch.randint(0, ATOMS, (n,), generator=self.gen)
        bonds = torch.rand(n, n, generator=self.gen) < 0.3
        energy = atoms.float().mean() - bonds.float().mean()
        if torch.rand((), generator=self.gen) < self.broken:
            energy = energy * float("nan")
        return Molecule(atoms, (bonds | bonds.T).float(), energy)

    def batches(self, steps, size=6):
        for _ in range(steps):
            yield [self._one() for _ in range(size)]


def checked(molecules):
    for m in molecules:
        if not torch.isfinite(m.energy):
            raise BrokenMolecule(f"no energy for a molecule of {len(m.atoms)} atoms")
    return molecules


class MessagePassing(nn.Module):
    def __init__(self):
        super().__init__()
        self.atom = nn.Embedding(ATOMS, WIDTH)
        self.message = nn.ModuleList([nn.Linear(2 * WIDTH, WIDTH) for _ in range(2)])
        self.readout = nn.Linear(WIDTH, 1)

    def forward(self, molecule):
        x = self.atom(molecule.atoms)
        bonds = molecule.bonds / molecule.bonds.sum(1, keepdim=True).clamp(min=1)
        for layer in self.message:
            x = F.relu(layer(torch.cat([x, bonds @ x], dim=-1)))
        return self.readout(x.mean(0)).squeeze()


class Trainer:
    def __init__(self, device):
        self.device = device
        torch.manual_seed(2)  # identical weights to start from
        self.model = MessagePassing().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        self.skipped = 0

    def _backward(self, molecules):
        moved = [Molecule(*(t.to(self.device) for t in m)) for m in checked(molecules)]
        predicted = torch.stack([self.model(m) for m in moved])
        loss = F.mse_loss(predicted, torch.stack([m.energy for m in moved]))
        loss.backward()

    def _anyone(self, failed):
        flag = torch.tensor([float(failed)], device=self.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    def _average_gradients(self):
        for p in self.model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()

    def step(self, molecules):
        self.optimizer.zero_grad()
        failed = False
        try:
            self._backward(molecules)
        except BrokenMolecule as error:
            log.info("rank %d: %s", dist.get_rank(), error)
            failed = True
        if self._anyone(failed):
            self.skipped += 1
            return
        self._average_gradients()
        self.optimizer.step()


def main():
    logging.basicConfig(level=logging.WARNING)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    trainer = Trainer(device)
    for molecules in MoleculeStream(seed=400 + dist.get_rank()).batches(80):
        trainer.step(molecules)
    if dist.get_rank() == 0:
        print(f"{trainer.skipped} of 80 steps skipped", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
