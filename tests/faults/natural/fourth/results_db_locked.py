"""Rank 0 keeps a write transaction of the results database open while it computes statistics; another rank's insert times out.

Modelled on optuna/optuna#820 and #4994 ("sqlite3.OperationalError: database is locked" with several processes).
"""
# case: processes=2 ending=crash causes=python-exception-on-one-rank,file-io-blocked ranks=1 framework=ddp

import contextlib
import os
import sqlite3
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

DATABASE = os.path.join(tempfile.gettempdir(), f"results-{os.environ['MASTER_PORT']}.sqlite")


class Results:
    """Predictions of all ranks, for the error analysis in a notebook."""

    def __init__(self, rank):
        self.rank = rank
        self.connection = sqlite3.connect(DATABASE, isolation_level=None)
        self.connection.execute("create table if not exists predictions (step, rank, sample, score)")
        self.connection.execute("create table if not exists summary (step, mean, worst)")

    @contextlib.contextmanager
    def transaction(self):
        self.connection.execute("begin immediate")  # GUILTY
        yield self.connection
        self.connection.execute("commit")

    def add(self, step, scores):
        with self.transaction() as c:  # ALSO
            rows = [(step, self.rank, i, float(s)) for i, s in enumerate(scores)]
            c.executemany("insert into predictions values (?, ?, ?, ?)", rows)

    def summarize(self, step):
        """Recompute the summary of all steps so far."""
        with self.transaction() as c:  # ALSO
            c.execute("delete from summary")
            for (each,) in c.execute("select distinct step from predictions").fetchall():
                values = [row[0] for row in c.execute("select score from predictions where step = ?", (each,))]
                time.sleep(0.8 if step > 20 else 0.02)  # ALSO
                c.execute("insert into summary values (?, ?, ?)", (each, sum(values) / len(values), max(values)))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        Results(rank)
    dist.barrier()
    results = Results(rank)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(9, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    torch.manual_seed(rank)
    for step in range(1, 41):
        x = torch.randn(32, 9)
        error = (model(x).squeeze(-1) - x.pow(2).sum(-1)).abs()
        optimizer.zero_grad()
        error.mean().backward()
        optimizer.step()
        if step % 2 == 0:
            if rank == 0 and step % 8 == 0:
                results.summarize(step)  # ALSO
            time.sleep(0.1 * rank)
            results.add(step, error.detach())  # ALSO
        if rank == 0 and step % 8 == 0:
            print(f"step {step} error {error.mean().item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
