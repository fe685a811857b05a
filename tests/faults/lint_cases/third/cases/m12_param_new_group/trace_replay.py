import argparse
import os
import time

import torch
import torch.distributed as dist

from comms_trace import CommsTrace


class PyTorchDistBackend:
    def __init__(self, device):
        self.device = device
        self.groups = {}

    def initialize_groups(self, trace, trace_dir):
        rank = dist.get_rank()
        for pg_id, ranks in trace.groups.items():
            if not ranks:
                self.groups[pg_id] = dist.group.WORLD
            elif rank in ranks:
                self.groups[pg_id] = dist.new_group(ranks=ranks)

    def run(self, call):
        group = self.groups[call["pg"]]
        tensor = torch.ones(call["numel"], device=self.device)
        if call["op"] == "all_reduce":
            dist.all_reduce(tensor, group=group)
        elif call["op"] == "all_gather":
            out = torch.empty(call["numel"] * dist.get_world_size(group), device=self.device)
            dist.all_gather_into_tensor(out, tensor, group=group)
        elif call["op"] == "reduce_scatter":
            out = torch.empty(call["numel"] // dist.get_world_size(group), device=self.device)
            dist.reduce_scatter_tensor(out, tensor, group=group)
        else:
            raise ValueError(f"unsupported operation {call['op']}")


def replay(backend, trace, warmup=2, iters=10):
    for _ in range(warmup):
        for call in trace.calls:
            backend.run(call)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(iters):
        for call in trace.calls:
            backend.run(call)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / iters


def main():
    parser = argparse.ArgumentParser(description="replays the collectives of a recorded job")
    parser.add_argument("--trace-path", required=True)
    parser.add_argument("--num-replays", type=int, default=10)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    trace = CommsTrace.load(args.trace_path, dist.get_rank())
    backend = PyTorchDistBackend(torch.device("cuda", local_rank))
    backend.initialize_groups(trace, args.trace_path)
    seconds = replay(backend, trace, iters=args.num_replays)
    if dist.get_rank() == 0:
        print(f"one replay takes {seconds * 1e3:.2f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
