"""Fine-tuning from a large file: the processes of a job read it a few at a time, so that host memory holds few copies."""
import argparse
import os
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


@contextmanager
def in_turn(width: int = 1):
    """At most `width` processes are inside the body at once; they enter in the order of their ranks."""
    if not dist.is_initialized() or dist.get_world_size() <= width:
        yield
        return
    slots = -(-dist.get_world_size() // width)
    slot = dist.get_rank() // width
    for _ in range(slot):
        dist.barrier()
    try:
        yield
    finally:
        for _ in range(slots - slot):
            dist.barrier()


class Encoder(nn.Module):
    def __init__(self, dim=32, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(dim, dim), nn.GELU()) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.norm(x)


class Classifier(nn.Module):
    def __init__(self, encoder, classes):
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(32, classes)

    def forward(self, x):
        return self.head(self.encoder(x))


class PretrainedStore:
    def __init__(self, root: Path):
        self.path = root / "encoder.pt"

    def ensure(self) -> None:
        """Rank 0 writes the file when it is not there yet; all see it afterwards."""
        if dist.get_rank() == 0 and not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(99)
                state = Encoder().state_dict()
            tmp = self.path.with_suffix(".tmp")
            torch.save(state, tmp)
            os.replace(tmp, self.path)
        dist.barrier()

    def load_into(self, encoder: Encoder, width: int) -> None:
        with in_turn(width):
            state = torch.load(self.path, map_location="cpu")
            missing, unexpected = encoder.load_state_dict(state, strict=False)
            del state
        if missing or unexpected:
            raise RuntimeError(f"file does not fit the model: {missing} {unexpected}")


def describe(model, device):
    """One line per rank, in order."""
    with in_turn():
        print(f"[{dist.get_rank()}] {sum(p.numel() for p in model.parameters())} parameters on {device}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path, default=Path(os.environ.get("PRETRAINED", "pretrained")))
    parser.add_argument("--readers", type=int, default=int(os.environ.get("READERS", "1")))
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    try:
        store = PretrainedStore(args.store)
        store.ensure()
        model = Classifier(Encoder(), classes=5)
        store.load_into(model.encoder, args.readers)
        model.to(device)
        describe(model, device)
        ddp = DDP(model, device_ids=[device.index] if cuda else None)
        opt = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
        gen = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(args.steps):
            x = torch.randn(8, 32, generator=gen).to(device)
            y = x[:, :5].argmax(1)
            opt.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(ddp(x), y).backward()
            opt.step()
        describe(model, device)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
