import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from store import CheckpointStore


class RandomCrops:
    def __init__(self, tokens, length, batch, seed):
        self.tokens, self.length, self.batch = tokens, length, batch
        self.rng = torch.Generator().manual_seed(seed)

    def next(self):
        starts = torch.randint(self.tokens.numel() - self.length - 1, (self.batch,), generator=self.rng)
        rows = torch.stack([self.tokens[s:s + self.length + 1] for s in starts.tolist()])
        return rows[:, :-1], rows[:, 1:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tokens")
    parser.add_argument("--out", default="ckpt")
    for name, value in (("vocab", 256), ("dim", 512), ("length", 256), ("batch", 32), ("steps", 5000), ("every", 500),
                        ("keep", 2), ("seed", 9)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    device = torch.device("cuda", torch.cuda.current_device())
    net = nn.Sequential(nn.Embedding(args.vocab, args.dim), nn.Linear(args.dim, args.dim), nn.GELU(),
                        nn.Linear(args.dim, args.vocab)).to(device)
    crops = RandomCrops(torch.load(args.tokens, map_location="cpu").long(), args.length, args.batch,
                        args.seed + dist.get_rank())
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)
    store = CheckpointStore(args.out, args.keep)
    start = store.latest() or 0
    if start:
        shared, private = store.load(start)
        net.load_state_dict(shared["model"])
        optimizer.load_state_dict(shared["optimizer"])
        crops.rng.set_state(private["rng"])
    model = DistributedDataParallel(net, device_ids=[device.index])
    for step in range(start + 1, args.steps + 1):
        x, y = crops.next()
        loss = F.cross_entropy(model(x.to(device)).flatten(0, 1), y.to(device).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.every == 0 or step == args.steps:
            shared = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
            store.save(step, shared, {"rng": crops.rng.get_state()})
            if dist.get_rank() == 0:
                print(f"step {step} loss {loss.item():.4f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
