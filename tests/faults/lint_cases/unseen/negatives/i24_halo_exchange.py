"""Heat equation on strips: neighbours swap their border rows in two phases, pairs chosen by the parity of the rank."""
import argparse
import os
from typing import Optional

import torch
import torch.distributed as dist


class Strip:
    """A block of rows with one ghost row above and one below."""

    def __init__(self, rows: int, cols: int, device):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.above: Optional[int] = self.rank - 1 if self.rank > 0 else None
        self.below: Optional[int] = self.rank + 1 if self.rank < self.size - 1 else None
        self.cells = torch.zeros(rows + 2, cols, device=device)
        self._buf = torch.empty(cols, device=device)

    @property
    def interior(self) -> torch.Tensor:
        return self.cells[1:-1]

    def hold_boundary(self) -> None:
        if self.above is None:
            self.cells[0] = 1.0
        if self.below is None:
            self.cells[-1] = 0.0
        self.cells[:, 0] = 0.0
        self.cells[:, -1] = 0.0

    def _swap(self, peer: Optional[int], out: torch.Tensor, ghost: int) -> None:
        if peer is None:
            return
        if self.rank < peer:
            dist.send(out.contiguous(), dst=peer)
            dist.recv(self._buf, src=peer)
        else:
            dist.recv(self._buf, src=peer)
            dist.send(out.contiguous(), dst=peer)
        self.cells[ghost] = self._buf

    def exchange(self) -> None:
        down = (self.below, self.cells[-2], -1)
        up = (self.above, self.cells[1], 0)
        for side in (down, up) if self.rank % 2 == 0 else (up, down):
            self._swap(*side)


class JacobiSolver:
    def __init__(self, strip: Strip, tol: float, check_every: int):
        self.strip, self.tol, self.check_every = strip, tol, check_every
        self.change = torch.zeros((), device=strip.cells.device)

    def sweep(self) -> None:
        c = self.strip.cells
        new = c.clone()
        new[1:-1, 1:-1] = 0.25 * (c[:-2, 1:-1] + c[2:, 1:-1] + c[1:-1, :-2] + c[1:-1, 2:])
        self.change = (new - c).abs().max()
        self.strip.cells = new

    def largest_change(self) -> float:
        worst = self.change.clone()
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        return worst.item()

    def solve(self, max_sweeps: int) -> int:
        for n in range(1, max_sweeps + 1):
            self.strip.hold_boundary()
            self.strip.exchange()
            self.sweep()
            if n % self.check_every == 0 and self.largest_change() < self.tol:
                return n
        return max_sweeps


def collect(strip: Strip) -> Optional[torch.Tensor]:
    mine = strip.interior.contiguous()
    parts = [torch.empty_like(mine) for _ in range(strip.size)] if strip.rank == 0 else None
    dist.gather(mine, parts, dst=0)
    return torch.cat(parts) if parts is not None else None


def pass_along(strip: Strip, value: torch.Tensor) -> torch.Tensor:
    """Running sum from the top strip to the bottom one."""
    total = value.clone()
    if strip.above is not None:
        before = torch.empty_like(value)
        dist.recv(before, src=strip.above)
        total += before
    if strip.below is not None:
        dist.send(total, dst=strip.below)
    return total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=8, help="rows of each process")
    parser.add_argument("--cols", type=int, default=32)
    parser.add_argument("--sweeps", type=int, default=400)
    parser.add_argument("--tol", type=float, default=1e-3)
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    try:
        strip = Strip(args.rows, args.cols, device)
        sweeps = JacobiSolver(strip, args.tol, check_every=20).solve(args.sweeps)
        heat = pass_along(strip, strip.interior.sum())
        field = collect(strip)
        if strip.below is None:
            print(f"heat down to the last strip {heat.item():.3f}")
        if field is not None:
            print(f"{sweeps} sweeps, mean {field.mean().item():.4f}")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
