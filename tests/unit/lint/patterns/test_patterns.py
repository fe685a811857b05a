"""Syntactic patterns: less obvious problems, and correct code that looks similar."""

import pytest

from tests.unit.lint.programs import program_from_sources

FINE = {
    "a group of one rank on the first GPU": """
import torch
import torch.distributed as dist
def main(model):
    dist.init_process_group("nccl", init_method="env://", rank=0, world_size=1)
    model.to("cuda:0")
    dist.destroy_process_group()
if __name__ == "__main__":
    main()
""",
    "the GPU of the rank as DDP's device": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def main(model, local_rank):
    dist.init_process_group("nccl")
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    if dist.get_rank() == 0:
        state = torch.load("last.pt", map_location="cuda:0", weights_only=True)
    dist.destroy_process_group()
if __name__ == "__main__":
    main()
""",
    "a file written by the same function": """
import torch
def twice(x, path):
    torch.save(x, path)
    return torch.load(path, weights_only=False)
""",
    "a value passed by the caller": """
import torch
def load(path, trusted):
    return torch.load(path, weights_only=not trusted)
""",
    "another library's load": """
import torch, joblib
def load(path):
    return joblib.load(path, weights_only=False)
""",
    "a file for each step": """
import torch
def train(model, steps):
    for step in range(steps):
        torch.save(model.state_dict(), f"step-{step}.pt")
""",
    "a folder that varies per call": """
import os, torch
class Writer:
    def save(self, model, folder):
        torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
    def load(self, folder):
        return torch.load(os.path.join(folder, "model.pt"))
""",
    "one save at the end": """
import torch
def main(model, steps):
    for step in range(steps):
        model(step).backward()
    torch.save(model.state_dict(), "model.pt")
""",
    "a copied checkpoint": """
import shutil, torch
class Writer:
    def __init__(self, path):
        self.path = path
    def save(self, model):
        shutil.copy(self.path, self.path + ".before")
        torch.save(model.state_dict(), self.path)
    def load(self):
        return torch.load(self.path)
""",
    "one process on CPU": """
import torch
def train(model, loader):
    for batch in loader:
        loss = model(batch)
        loss.backward()
        print(loss.item())
""",
    "values read occasionally or once": """
import torch.distributed
def train(model, loader, device):
    total = 0
    for step, batch in enumerate(loader):
        loss = model(batch.to(device))
        (loss / 4).backward()
        total += loss.detach()
        shown = loss.item() if step % 50 == 0 else 0
        if step % 50:
            continue
        print(loss)
    print(total.item())
""",
    "a loss read occasionally by a function": """
import torch.distributed
class Log:
    def show(self, step, value):
        if step % 50 == 0:
            print(value.item())
def train(model, loader, device):
    log = Log()
    for step, batch in enumerate(loader):
        loss = model(batch.to(device))
        loss.backward()
        log.show(step, loss)
""",
    "handles that are stored, returned or awaited": """
import torch
import torch.distributed as dist
class Buckets:
    def add(self, x):
        self.pending.append(dist.all_reduce(x, async_op=True))
        self.last = dist.all_reduce(x, async_op=True)
    def finish(self):
        self.last.wait()
        for work in self.pending:
            work.wait()
def start(x):
    return dist.all_reduce(x, async_op=True)
def whole(x):
    dist.all_reduce(x, async_op=True).wait()
    start(x).wait()
    dist.all_reduce(x, async_op=False)
    work = dist.broadcast(x, 0, async_op=True)
    work.wait()
def ended(x):
    dist.all_reduce(x, async_op=True)
    torch.cuda.synchronize()
def unused(x):
    other = x + 1
    dist.all_reduce(other, async_op=True)
""",
    "no_sync except for the last part, or manual averaging": """
import contextlib
import torch.distributed as dist
def train(model, parts, optimizer):
    for at, part in enumerate(parts):
        with model.no_sync() if at + 1 < len(parts) else contextlib.nullcontext():
            model(part).backward()
    optimizer.step()
def by_hand(model, parts, optimizer):
    with model.no_sync():
        model(parts).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
""",
    "a GPU selected in time or passed to the group": """
import os, torch
import torch.distributed as dist
def main():
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    dist.barrier()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.destroy_process_group()
main()
""",
    "a CPU group": """
import os, torch
import torch.distributed as dist
def main():
    dist.init_process_group("gloo")
    dist.barrier()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
if __name__ == "__main__":
    main()
""",
    "a group created by a library module": """
import torch.distributed as dist
def setup():
    dist.init_process_group("nccl")
""",
    "rank-dependent seeds or draws": """
import torch
import torch.distributed as dist
def share(rank, noise, world):
    torch.manual_seed(0)
    mine = torch.randn(8, 4)[rank]
    everybody = [torch.empty(4) for _ in range(world)]
    dist.all_gather(everybody, mine)
    return everybody
""",
    "broadcast weights": """
import torch
import torch.distributed as dist
def main():
    torch.manual_seed(7 + dist.get_rank())
    model = torch.nn.Linear(4, 4)
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    model(torch.rand(4)).sum().backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
""",
}
SEEN = {
    "a script on the first GPU": """
import torch.distributed as dist
def main(model):
    dist.init_process_group("nccl")  # torch.
    model.cuda()
    dist.destroy_process_group()
if __name__ == "__main__":
    main()
""",
    "a script on the GPU of number 0": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def main(model):
    dist.init_process_group("nccl")  # torch.
    model = DDP(model.to("cuda:0"), device_ids=[0])
    dist.destroy_process_group()
if __name__ == "__main__":
    main()
""",
    "a handle in an unread variable": """
import torch.distributed as dist
def hand_on(x, peer):
    work = dist.isend(x, peer)  # torch.
    x.zero_()
""",
    "a handle in an unread attribute": """
import torch.distributed as dist
class Average:
    def start(self):
        self.work = dist.all_reduce(self.total, async_op=True)  # torch.
""",
    "a function that receives the loss": """
import torch.distributed
class Log:
    def show(self, value):
        self.last = float(value.detach())  # torch.
def train(model, loader, scaler, device):
    log = Log()
    for batch in loader:
        loss = model(batch.to(device)).mean()
        scaler.scale(loss).backward()
        log.show(loss)
""",
    "a loss term in an f-string": """
import torch.distributed
def train(model, loader, accelerator, logger):
    for batch in loader:
        with accelerator.accumulate(model):
            one = model(batch)
            other = model.aside(batch)
            loss = one + 0.1 * other
            accelerator.backward(loss)
            logger.info(f"aside {other:.3f}")  # torch.
""",
    "a path passed to the constructor": """
import torch
class Writer:
    def __init__(self, path):
        self.path = path
    def save(self, model):
        torch.save(model.state_dict(), self.path)
    def load(self):
        return torch.load(self.path)
""",
    "a path passed by all callers": """
import torch, os
def save(model, path):
    torch.save(model.state_dict(), path)
def main(model, steps):
    path = os.path.join("out", "last.pt")
    if os.path.exists(path):
        model.load_state_dict(torch.load(path))
    for step in range(steps):
        save(model, path)
""",
    "through an open file": """
import torch
def train(model, args):
    for step in range(args.steps):
        with open(f"{args.out}/last.pt", "wb") as file:
            torch.save({"model": model.state_dict()}, file)
""",
    "a local import": """
def load(path):
    import torch
    return torch.load(path, weights_only=False)
""",
}


@pytest.mark.parametrize("text", SEEN.values(), ids=SEEN)
def test_less_obvious_patterns_are_found(text):
    (divergence,) = program_from_sources({"main": ("main.py", text)}).analyze()
    assert "torch." in text.split("\n")[divergence.location.line - 1]


@pytest.mark.parametrize("text", FINE.values(), ids=FINE)
def test_correct_code_has_no_finding(text):
    assert [
        (divergence.kind, divergence.location.line)
        for divergence in program_from_sources({"main": ("main.py", text)}).analyze()
    ] == []


def test_a_sum_of_many_terms_is_analyzed():
    text = f"""
import torch.distributed as dist
def train(model, loader, device):
    for batch in loader:
        loss = model(batch)
        loss.backward()
        print({" + ".join(["loss"] * 900)})
def reduce(x):
    dist.all_reduce(x, async_op=True)
"""
    assert "handle" in [
        divergence.kind
        for divergence in program_from_sources({"main": ("main.py", text)}).analyze()
    ]
