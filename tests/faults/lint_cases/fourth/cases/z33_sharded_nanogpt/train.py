import argparse
import functools
import os

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.nn.parallel import DistributedDataParallel as DDP

from model import GPT, Block


def get_batch(data, batch_size, block_size, generator):
    starts = torch.randint(len(data) - block_size - 1, (batch_size,), generator=generator)
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in starts])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in starts])
    return x.cuda(), y.cuda()


def configure_optimizer(model, args):
    return torch.optim.AdamW(
        model.parameters(), lr=args.learning_rate, weight_decay=args.weight_decay, betas=(0.9, 0.95)
    )


def wrap(model, args, local_rank):
    if args.use_fsdp:
        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
        return FSDP(model, auto_wrap_policy=policy, device_id=local_rank)
    return DDP(model, device_ids=[local_rank])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="train.bin")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--batch_size", type=int, default=12)
    parser.add_argument("--block_size", type=int, default=1024)
    parser.add_argument("--learning_rate", type=float, default=6e-4)
    parser.add_argument("--weight_decay", type=float, default=0.1)
    parser.add_argument("--use_fsdp", action="store_true")
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(1337)
    data = np.memmap(args.data, dtype=np.uint16, mode="r")
    generator = torch.Generator().manual_seed(1337 + dist.get_rank())
    model = GPT(block_size=args.block_size).cuda()
    optimizer = configure_optimizer(model, args)
    model = wrap(model, args, local_rank)
    for step in range(args.steps):
        loss = model(*get_batch(data, args.batch_size, args.block_size, generator))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0 and dist.get_rank() == 0:
            print(f"iter {step}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
