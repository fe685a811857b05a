"""Parallel tempering: the two partners of a swap both send their state first and receive afterwards, so both wait in send().

Modelled on pairwise exchanges with blocking send and recv, which deadlock as soon as a message is not buffered.
"""
# case: processes=4 ending=hang causes=p2p-without-partner,rank-missing-collective,collective-order-inversion ranks=1,2 framework=torch.distributed

import math

import torch
import torch.distributed as dist

DIM, SWEEPS, SWAP_EVERY = 4096, 120, 20


def energy(x):
    """A rugged potential with many local minima."""
    return (0.02 * x**2 + torch.cos(3 * x)).sum()


class Langevin:
    """Unadjusted Langevin dynamics at one temperature."""

    def __init__(self, temperature, seed):
        self.temperature = temperature
        self.generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(DIM, generator=self.generator)
        self.step_size = 0.01

    def sweep(self, steps=10):
        for _ in range(steps):
            x = self.x.clone().requires_grad_(True)
            (gradient,) = torch.autograd.grad(energy(x), x)
            noise = torch.randn(DIM, generator=self.generator)
            self.x = self.x - self.step_size * gradient + math.sqrt(2 * self.step_size * self.temperature) * noise
        return energy(self.x)


def partner_of(rank, world, round_number):
    """Pair (0,1), (2,3) in even rounds and (1,2) in odd ones."""
    offset = round_number % 2
    partner = rank + 1 if (rank - offset) % 2 == 0 else rank - 1
    return partner if 0 <= partner < world and rank >= offset else None


def exchange(chain, partner):
    """Return the partner's state and energy."""
    mine = torch.cat([chain.x, energy(chain.x).reshape(1)])
    theirs = torch.empty_like(mine)
    dist.send(mine, dst=partner)  # GUILTY
    dist.recv(theirs, src=partner)  # ALSO
    return theirs[:-1], theirs[-1].item()


def attempt_swap(chain, temperatures, rank, partner):
    state, other = exchange(chain, partner)  # ALSO
    own = energy(chain.x).item()
    beta = 1 / temperatures[rank] - 1 / temperatures[partner]
    shared = torch.Generator().manual_seed(min(rank, partner))
    if math.log(torch.rand(1, generator=shared).item()) < beta * (own - other):
        chain.x = state


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    temperatures = [0.5 * 1.6**i for i in range(world)]
    chain = Langevin(temperatures[rank], seed=rank)
    for sweep in range(1, SWEEPS + 1):
        value = chain.sweep()
        if sweep % SWAP_EVERY == 0:
            energies = [torch.zeros(1) for _ in range(world)]
            dist.all_gather(energies, value.reshape(1))
            if rank == 0:
                print(f"sweep {sweep} energies {[round(e.item(), 1) for e in energies]}", flush=True)
            partner = partner_of(rank, world, sweep // SWAP_EVERY)
            if partner is not None:
                attempt_swap(chain, temperatures, rank, partner)  # ALSO
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
