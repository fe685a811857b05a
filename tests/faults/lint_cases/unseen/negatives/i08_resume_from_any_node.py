"""Resume from checkpoints on node-local disks: agree on the newest iteration, take it from the first rank that holds it."""
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import List, Optional

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

TRACKER = "latest_checkpointed_iteration.txt"


def print_rank_0(message):
    if dist.get_rank() == 0:
        print(message, flush=True)


def device():
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


def checkpoint_name(root: Path, iteration: int) -> Path:
    return root / f"iter_{iteration:07d}" / "model_optim_rng.pt"


def read_tracker(root: Path) -> int:
    try:
        return int((root / TRACKER).read_text().strip())
    except (FileNotFoundError, ValueError):
        return -1


def newest_iteration(root: Path) -> int:
    """Iteration that the freshest node knows; -1 where there is none anywhere."""
    mine = read_tracker(root)
    seen = torch.tensor([mine], dtype=torch.long, device=device())
    dist.all_reduce(seen, op=dist.ReduceOp.MAX)
    newest = int(seen.item())
    if mine != newest and mine >= 0:
        print(f"rank {dist.get_rank()} has iteration {mine}, the job has {newest}", file=sys.stderr)
    return newest


def owners_of(path: Path) -> List[int]:
    have = torch.tensor([int(path.is_file())], device=device())
    slots = [torch.zeros_like(have) for _ in range(dist.get_world_size())]
    dist.all_gather(slots, have)
    return [r for r, slot in enumerate(slots) if slot.item()]


def fetch(path: Path) -> Optional[dict]:
    owners = owners_of(path)
    if not owners:
        return None
    src = owners[0]
    box = [torch.load(path, map_location="cpu", weights_only=False)] if dist.get_rank() == src else [None]
    dist.broadcast_object_list(box, src=src)
    return box[0]


def load_checkpoint(root: Path, model, opt) -> int:
    iteration = newest_iteration(root)
    if iteration < 0:
        print_rank_0("no checkpoint found, training starts from random")
        return 0
    state = fetch(checkpoint_name(root, iteration))
    if state is None:
        print_rank_0(f"no node holds iteration {iteration} any more, training starts from random")
        return 0
    model.load_state_dict(state["model"])
    opt.load_state_dict(state["opt"])
    random.setstate(state["python_rng"])
    print_rank_0(f"resumed at iteration {state['iteration']}")
    return state["iteration"]


def save_checkpoint(root: Path, iteration, model, opt) -> None:
    """One copy per node, written by its first process."""
    if int(os.environ.get("LOCAL_RANK", "0")) == 0:
        path = checkpoint_name(root, iteration)
        path.parent.mkdir(parents=True, exist_ok=True)
        tmp = path.with_suffix(".tmp")
        torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "iteration": iteration, "python_rng": random.getstate()}, tmp)
        os.replace(tmp, path)
        tracker = root / (TRACKER + ".tmp")
        tracker.write_text(str(iteration))
        os.replace(tracker, root / TRACKER)
    dist.barrier()


def main(train_iters=40, save_interval=20):
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    root = Path(os.environ.get("NODE_LOCAL_CKPT", os.path.join(tempfile.gettempdir(), "node_ckpt")))
    try:
        random.seed(11)
        net = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1)).to(device())
        opt = torch.optim.Adam(net.parameters(), lr=1e-2)
        start = load_checkpoint(root, net, opt)
        ddp = DDP(net, device_ids=[torch.cuda.current_device()] if cuda else None)
        gen = torch.Generator().manual_seed(1000 * start + dist.get_rank())
        for iteration in range(start + 1, train_iters + 1):
            flip = random.random() < 0.5
            x = torch.randn(16, 8, generator=gen).to(device())
            loss = (ddp(-x if flip else x) - x.prod(1, keepdim=True)).pow(2).mean()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            if iteration % save_interval == 0:
                save_checkpoint(root, iteration, net, opt)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
