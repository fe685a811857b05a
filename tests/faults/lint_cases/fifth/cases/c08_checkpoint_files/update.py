import argparse
import math
import os
import time

import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM

from param_server import ParameterServer


def split_checkpoint_files(checkpoint_path, rank, world_size):
    files = [
        os.path.join(checkpoint_path, name)
        for name in os.listdir(checkpoint_path)
        if name.endswith(".safetensors")
    ]
    per_rank = math.ceil(len(files) / world_size)
    return files[rank * per_rank : (rank + 1) * per_rank]


class Loader:
    def __init__(self, model):
        self.targets = dict(model.named_parameters())
        self.targets.update(model.named_buffers())
        self.skipped = []

    @torch.no_grad()
    def __call__(self, name, tensor):
        if name in self.targets:
            self.targets[name].copy_(tensor)
        else:
            self.skipped.append(name)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint-path", required=True)
    parser.add_argument("--repeat", type=int, default=1)
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    config = AutoConfig.from_pretrained(args.checkpoint_path)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, torch_dtype=torch.bfloat16)

    server = ParameterServer(device)
    server.register_checkpoint(split_checkpoint_files(args.checkpoint_path, rank, world_size))
    server.gather_metas()
    loader = Loader(model)
    for _ in range(args.repeat):
        dist.barrier()
        start = time.perf_counter()
        count = server.update(loader)
        torch.cuda.synchronize()
        if rank == 0:
            print(f"updated {count} tensors in {time.perf_counter() - start:.2f} s, skipped {len(loader.skipped)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
