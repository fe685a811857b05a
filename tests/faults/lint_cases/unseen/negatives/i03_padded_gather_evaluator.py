"""Box regressor with an evaluator that pickles predictions, pads them to the longest rank and gathers them on rank 0."""
import functools
import itertools
import os
import pickle
from collections import OrderedDict
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler


def get_world_size():
    if not dist.is_available() or not dist.is_initialized():
        return 1
    return dist.get_world_size()


def get_rank():
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def is_main_process():
    return get_rank() == 0


def synchronize():
    if get_world_size() == 1:
        return
    dist.barrier()


@functools.lru_cache()
def _cpu_group():
    return dist.new_group(backend="gloo") if dist.get_backend() == "nccl" else dist.group.WORLD


def _pad_to_largest(tensor, group):
    local = torch.tensor([tensor.numel()], dtype=torch.int64)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, local, group=group)
    sizes = [int(s) for s in sizes]
    if tensor.numel() != max(sizes):
        tensor = torch.cat([tensor, torch.zeros(max(sizes) - tensor.numel(), dtype=torch.uint8)])
    return sizes, tensor


def gather(data, dst=0):
    if get_world_size() == 1:
        return [data]
    group = _cpu_group()
    payload = torch.frombuffer(bytearray(pickle.dumps(data)), dtype=torch.uint8)
    sizes, payload = _pad_to_largest(payload, group)
    if get_rank() == dst:
        slots = [torch.empty(max(sizes), dtype=torch.uint8) for _ in sizes]
        dist.gather(payload, slots, dst=dst, group=group)
        return [pickle.loads(t.numpy().tobytes()[:n]) for n, t in zip(sizes, slots)]
    else:
        dist.gather(payload, [], dst=dst, group=group)
        return []


class Boxes(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 10, generator=g)
        self.y = self.x[:, :4].abs()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return i, self.x[i], self.y[i]


class TrainingSampler(Sampler):
    """Endless shuffled stream; all workers shuffle alike and take every world-size-th index."""

    def __init__(self, size, seed=17):
        self.size, self.seed = size, seed

    def __iter__(self):
        yield from itertools.islice(self._stream(), get_rank(), None, get_world_size())

    def _stream(self):
        g = torch.Generator().manual_seed(self.seed)
        while True:
            yield from torch.randperm(self.size, generator=g).tolist()


class InferenceSampler(Sampler):
    def __init__(self, size):
        shard, left = divmod(size, get_world_size())
        counts = [shard + int(r < left) for r in range(get_world_size())]
        begin = sum(counts[: get_rank()])
        self.indices = range(begin, min(begin + counts[get_rank()], size))

    def __iter__(self):
        return iter(self.indices)

    def __len__(self):
        return len(self.indices)


class BoxEvaluator:
    def reset(self):
        self._errors = {}

    def process(self, ids, pred, target):
        for i, e in zip(ids.tolist(), (pred - target).abs().mean(1).tolist()):
            self._errors[i] = e

    def evaluate(self):
        parts = gather(self._errors)
        if not is_main_process():
            return {}
        merged = {k: v for part in parts for k, v in part.items()}
        if len(merged) == 0:
            return {}
        return OrderedDict(l1=sum(merged.values()) / len(merged), n=len(merged))


@contextmanager
def inference_mode_of(model):
    was = model.training
    model.eval()
    yield
    model.train(was)


def inference_on_dataset(model, loader, evaluator, device):
    evaluator.reset()
    with inference_mode_of(model), torch.no_grad():
        for ids, x, y in loader:
            evaluator.process(ids, model(x.to(device)).cpu(), y)
    results = evaluator.evaluate()
    return {} if results is None else results


class EvalHook:
    def __init__(self, period, fn):
        self.period, self.fn = period, fn

    def after_step(self, it, storage):
        if it % self.period == 0:
            results = self.fn()
            if results:
                storage.append((it, dict(results)))
                print(it, dict(results))
            synchronize()


def main(max_iter=60):
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    train, test = Boxes(400, 1), Boxes(31, 2)
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
    model = DistributedDataParallel(net, device_ids=[device.index] if cuda else None, broadcast_buffers=False)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    data = iter(DataLoader(train, batch_size=16, sampler=TrainingSampler(len(train))))
    test_loader = DataLoader(test, batch_size=4, sampler=InferenceSampler(len(test)))
    hook = EvalHook(20, lambda: inference_on_dataset(model.module, test_loader, BoxEvaluator(), device))
    storage = []
    for it in range(1, max_iter + 1):
        _, x, y = next(data)
        loss = (model(x.to(device)) - y.to(device)).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        hook.after_step(it, storage)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
