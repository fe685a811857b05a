"""Geometry relaxation of a system whose atoms are divided over the processes.

Each process owns a slab of atoms.  The long-range part of the force needs the total dipole of the system, so one
reduction per force evaluation is enough; everything else is local to the slab.
"""
import abc
import json
import os
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass
class Slab:
    positions: torch.Tensor
    anchors: torch.Tensor
    stiffness: torch.Tensor
    charges: torch.Tensor

    @classmethod
    def build(cls, rank, atoms=12):
        gen = torch.Generator().manual_seed(17 + rank)
        anchors = torch.randn(atoms, 3, generator=gen)
        kick = torch.randn(atoms, 3, generator=gen) * (0.2 + 1.5 * rank)
        return cls(
            positions=anchors + kick,
            anchors=anchors,
            stiffness=0.5 + torch.rand(atoms, 1, generator=gen),
            charges=torch.randn(atoms, 1, generator=gen) * 0.02,
        )

    def __len__(self):
        return len(self.positions)


class DipoleModel:
    """Harmonic wells plus a field made by the dipole of the whole system."""

    def __init__(self, coupling=0.05, group=None):
        self.coupling = coupling
        self.group = group
        self.calls = 0

    def _total(self, local):
        if dist.is_initialized() and dist.get_world_size(self.group) > 1:
            dist.all_reduce(local, group=self.group)  # RELATED: hidden-collective
        return local

    def forces(self, slab):
        self.calls += 1
        dipole = self._total((slab.charges * slab.positions).sum(0))
        return -slab.stiffness * (slab.positions - slab.anchors) - self.coupling * slab.charges * dipole

    def energy(self, slab):
        disp = slab.positions - slab.anchors
        return self._total((0.5 * slab.stiffness * disp.pow(2)).sum().reshape(1)).item()


class ConvergenceHook:
    """Largest force component below ``fmax``."""

    def __init__(self, fmax, group=None):
        self.fmax = fmax
        self.group = group

    def residual(self, forces):
        return forces.norm(dim=1).max()  # RELATED: taint-source

    def __call__(self, forces):
        return bool(self.residual(forces) < self.fmax)


class Optimizer(abc.ABC):
    def __init__(self, slab, model, hook, logfile=None, max_steps=400):
        self.slab, self.model, self.hook = slab, model, hook
        self.max_steps = max_steps
        self.nsteps = 0
        self.logfile = logfile
        self.current = None

    @abc.abstractmethod
    def displacement(self, forces):
        ...

    @property
    def converged(self):
        return self.current is not None and self.hook(self.current)

    def step(self):
        self.current = self.model.forces(self.slab)
        self.slab.positions += self.displacement(self.current)
        self.nsteps += 1

    def irun(self):
        while not self.converged and self.nsteps < self.max_steps:  # EXPECT: uneven-loop
            self.step()
            yield self.nsteps

    def run(self):
        for n in self.irun():
            self.log(n)
        return self.converged

    def log(self, n):
        if self.logfile is not None and n % 10 == 0:
            self.logfile.write(f"{type(self).__name__} {n:4d} fmax {self.hook.residual(self.current):.5f}\n")


class SteepestDescent(Optimizer):
    def __init__(self, *args, rate=0.2, **kwargs):
        super().__init__(*args, **kwargs)
        self.rate = rate

    def displacement(self, forces):
        return self.rate * forces


class Momentum(Optimizer):
    def __init__(self, *args, rate=0.15, mass=0.5, **kwargs):
        super().__init__(*args, **kwargs)
        self.rate, self.mass = rate, mass
        self.velocity = torch.zeros_like(self.slab.positions)

    def displacement(self, forces):
        self.velocity = self.mass * self.velocity + self.rate * forces
        return self.velocity


OPTIMIZERS = {"sd": SteepestDescent, "momentum": Momentum}


def relax(name, rank, fmax=1e-3):
    slab = Slab.build(rank)
    model = DipoleModel()
    logfile = sys.stderr if rank == 0 else None
    opt = OPTIMIZERS[name](slab, model, ConvergenceHook(fmax), logfile=logfile)
    before = model.energy(slab)
    ok = opt.run()
    after = model.energy(slab)
    return {"optimizer": name, "converged": ok, "steps": opt.nsteps, "before": before, "after": after}


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    for name in OPTIMIZERS:
        report = relax(name, rank)
        if rank == 0:
            out = os.path.join(os.environ.get("CASE_TMP", "."), f"relax-{name}.json")
            with open(out, "w") as fh:
                json.dump(report, fh)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
