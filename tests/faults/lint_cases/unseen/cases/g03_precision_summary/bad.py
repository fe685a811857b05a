"""Monte Carlo estimates of a small variational ansatz, refined until the standard error is below a tolerance.

Every process draws its own chains; statistics are those of all chains together.
"""
import argparse
import math
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn


class Ansatz(nn.Module):
    def __init__(self, sites, hidden=12):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(sites, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, spins):
        return self.body(spins).squeeze(-1)


class ChainSampler:
    """Metropolis chains with single spin flips; one block of chains per process."""

    def __init__(self, ansatz, sites, chains, seed):
        self.ansatz = ansatz
        self.rng = torch.Generator().manual_seed(seed * 7919 + dist.get_rank())
        self.spins = torch.randint(0, 2, (chains, sites), generator=self.rng).float() * 2 - 1

    @torch.no_grad()
    def sweep(self, n=4):
        rows = torch.arange(len(self.spins))
        for _ in range(n):
            flip = torch.randint(0, self.spins.shape[1], rows.shape, generator=self.rng)
            proposal = self.spins.clone()
            proposal[rows, flip] *= -1
            ratio = 2 * (self.ansatz(proposal) - self.ansatz(self.spins))
            keep = torch.rand(rows.shape, generator=self.rng).log() < ratio
            self.spins = torch.where(keep[:, None], proposal, self.spins)
        return self.spins


class Accumulator:
    """Sums of an observable over the local chains."""

    def __init__(self, name, fn):
        self.name, self.fn = name, fn
        self.sums = torch.zeros(3, dtype=torch.float64)

    def add(self, spins):
        v = self.fn(spins).double()
        self.sums += torch.stack([torch.tensor(float(len(v)), dtype=torch.float64), v.sum(), v.pow(2).sum()])

    @property
    def moments(self):
        """(mean, standard error) over the samples of all processes."""
        pooled = self.sums.clone()
        dist.all_reduce(pooled)  # RELATED: hidden-collective
        n, s, q = pooled.tolist()
        mean = s / n
        return mean, math.sqrt(max(q / n - mean * mean, 0.0) / n)


class ProgressLine:
    def __init__(self, label, enabled=True, stream=sys.stderr):
        self.label, self.stream = label, stream
        self.shown = enabled and dist.get_rank() == 0
        self.started = time.perf_counter()

    def write(self, text):
        if self.shown:
            print(f"{self.label}: {text}", file=self.stream)

    @property
    def seconds(self):
        return time.perf_counter() - self.started


def refine(sampler, observables, tol, max_rounds, verbose=True):
    """Adds samples until every observable is known to `tol`; yields the standard errors after each round."""
    line = ProgressLine("refine", verbose)
    for round_ in range(max_rounds):
        spins = sampler.sweep()
        for obs in observables:
            obs.add(spins)
        errors = {obs.name: obs.moments[1] for obs in observables}
        line.write(f"round {round_} " + " ".join(f"{k}={v:.2e}" for k, v in errors.items()))
        yield errors
        if max(errors.values()) < tol:
            break
    if line.shown:  # RELATED: guard
        worst = max(obs.moments[1] for obs in observables)  # EXPECT: rank-guarded-collective
        line.write(f"done in {line.seconds:.1f} s, largest error {worst:.2e}")


def expect_to_precision(sampler, observables, tol, max_rounds=8):
    rounds = 0
    for _ in refine(sampler, observables, tol, max_rounds):
        rounds += 1
    return {"rounds": rounds, **{obs.name: obs.moments[0] for obs in observables}}


def energy(spins):
    return -(spins * spins.roll(1, dims=1)).sum(1)


def magnetization(spins):
    return spins.mean(1)


def save_result(result, path):
    if dist.get_rank() == 0:
        torch.save(result, path)
    dist.barrier()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--sites", type=int, default=8)
    ap.add_argument("--chains", type=int, default=32)
    ap.add_argument("--tol", type=float, default=0.05)
    ap.add_argument("--seed", type=int, default=3)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    ansatz = Ansatz(args.sites)
    for p in ansatz.parameters():
        dist.broadcast(p.data, src=0)
    sampler = ChainSampler(ansatz, args.sites, args.chains, args.seed)
    observables = [Accumulator("energy", energy), Accumulator("m", magnetization)]
    result = expect_to_precision(sampler, observables, args.tol)
    save_result(result, os.path.join(os.environ.get("CASE_TMP", "."), "expect.pt"))
    return result


if __name__ == "__main__":
    main()
