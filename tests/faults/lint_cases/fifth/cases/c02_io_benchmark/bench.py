import json
import time

import torch
import torch.distributed as dist

from config import parse
from reader import NpzReader


class Benchmark:
    def __init__(self, args):
        dist.init_process_group("gloo")
        args.my_rank, args.comm_size = dist.get_rank(), dist.get_world_size()
        args.discover()
        self.args = args
        self.reader = NpzReader(args)
        self.epoch_time = []

    def compute(self, batch):
        time.sleep(self.args.computation_time)
        return float(batch.mean())

    def train_epoch(self, epoch):
        start = time.perf_counter()
        steps = 0
        for batch in self.reader.batches(epoch):
            self.compute(batch)
            dist.barrier()
            steps += 1
        self.epoch_time.append(time.perf_counter() - start)
        return steps

    def run(self):
        for epoch in range(self.args.epochs):
            dist.barrier()
            steps = self.train_epoch(epoch)
            if self.args.my_rank == 0:
                print(f"epoch {epoch}: {steps} steps in {self.epoch_time[-1]:.1f} s")

    def report(self):
        totals = torch.tensor([float(self.reader.bytes_read), self.reader.read_time], dtype=torch.float64)
        dist.all_reduce(totals)
        if self.args.my_rank == 0:
            summary = {
                "epochs": self.epoch_time,
                "read_gib": totals[0].item() / 2**30,
                "mean_read_time": totals[1].item() / self.args.comm_size,
            }
            with open("summary.json", "w") as fp:
                json.dump(summary, fp, indent=1)


def main():
    benchmark = Benchmark(parse())
    benchmark.run()
    benchmark.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
