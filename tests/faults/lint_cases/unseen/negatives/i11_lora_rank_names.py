"""LoRA fine-tuning. The adapters have a rank, the prefetch threads have a barrier, the shard reader gathers coroutines."""
import asyncio
import math
import os
import queue
import threading

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 0, alpha: float = 8.0):
        super().__init__()
        self.base, self.rank, self.scaling = base, rank, alpha / max(rank, 1)
        for p in base.parameters():
            p.requires_grad_(False)
        if rank > 0:
            self.down = nn.Parameter(torch.empty(rank, base.in_features))
            self.up = nn.Parameter(torch.zeros(base.out_features, rank))
            nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x):
        out = self.base(x)
        if self.rank == 0:
            return out
        return out + F.linear(F.linear(x, self.down), self.up) * self.scaling


def apply_lora(model: nn.Sequential, ranks) -> nn.Sequential:
    linear = [i for i, m in enumerate(model) if isinstance(m, nn.Linear)]
    for i, rank in zip(linear, ranks):
        model[i] = LoRALinear(model[i], rank)
    return model


def sync_adapters(model: nn.Module) -> None:
    """Starts all processes from the adapters of process 0."""
    for module in model.modules():
        if not isinstance(module, LoRALinear):
            continue
        rank = module.rank
        if rank == 0:
            continue
        dist.broadcast(module.down.data, src=0)
        dist.broadcast(module.up.data, src=0)


def merged_delta_norm(model: nn.Module) -> torch.Tensor:
    total = torch.zeros(())
    for m in model.modules():
        if isinstance(m, LoRALinear) and m.rank != 0:
            total = total + (m.up @ m.down).detach().cpu().norm()
    return total


async def read_shard(seed: int, rows: int):
    await asyncio.sleep(0)
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 16, generator=g)
    return x, (x[:, :4].argmax(1))


async def gather_shards(seeds, rows):
    return await asyncio.gather(*(read_shard(s, rows) for s in seeds))


class Prefetcher:
    """Two threads fill a batch each; the one that the barrier picks joins both halves and puts them in the queue."""

    def __init__(self, seed: int, n_batches: int, rows: int):
        self.queue = queue.Queue(maxsize=4)
        self.barrier = threading.Barrier(2)
        self.halves = [None, None]
        self.n_batches, self.rows, self.seed = n_batches, rows, seed
        self.threads = [threading.Thread(target=self._run, args=(rank,), daemon=True) for rank in range(2)]
        for t in self.threads:
            t.start()

    def _run(self, rank: int):
        for i in range(self.n_batches):
            base = self.seed + 4 * i + 2 * rank
            parts = asyncio.run(gather_shards((base, base + 1), self.rows // 4))
            self.halves[rank] = [torch.cat(cols) for cols in zip(*parts)]
            if self.barrier.wait() == 0:
                self.queue.put([torch.cat(cols) for cols in zip(*self.halves)])
            self.barrier.wait()

    def __iter__(self):
        for _ in range(self.n_batches):
            yield self.queue.get()


def target_loss(logits, y):
    picked = torch.gather(logits.log_softmax(-1), 1, y.unsqueeze(1))
    return -picked.mean()


class AdapterStore:
    def __init__(self, path):
        self.path = path

    def save_checkpoint(self, state):
        torch.save(state, self.path + ".tmp")
        os.replace(self.path + ".tmp", self.path)


def main(steps=40, lora_ranks=(4, 0, 2)):
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    try:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4))
        net = apply_lora(net, lora_ranks).to(device)
        sync_adapters(net)
        model = DDP(net, device_ids=[device.index] if cuda else None)
        opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        last = torch.zeros((), device=device)
        for x, y in Prefetcher(seed=10_000 * dist.get_rank(), n_batches=steps, rows=16):
            loss = target_loss(model(x.to(device)), y.to(device))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            last = loss.detach()
        dist.reduce(last, dst=0)
        if dist.get_rank() == 0:
            print(f"loss {last.item() / dist.get_world_size():.4f} delta {merged_delta_norm(net).item():.4f}")
            AdapterStore("adapters.pt").save_checkpoint({k: v for k, v in net.state_dict().items() if ".base." not in k})
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
