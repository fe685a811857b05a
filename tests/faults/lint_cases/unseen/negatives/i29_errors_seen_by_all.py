"""Shard conversion and training in one job; an error that one rank meets is told to all before any of them raises."""
import contextlib
import json
import logging
import os
from pathlib import Path
from typing import Callable, Dict, Iterator, List, TypeVar

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

logger = logging.getLogger("convert_and_train")
T = TypeVar("T")


class RankFailure(RuntimeError):
    def __init__(self, what: str, failures: Dict[int, str]):
        super().__init__(f"{what} failed on " + "; ".join(f"rank {r}: {m}" for r, m in failures.items()))
        self.failures = failures


@contextlib.contextmanager
def all_or_none(what: str) -> Iterator[None]:
    """Runs local work. When it raises on some rank, every rank leaves with the same RankFailure."""
    error = None
    try:
        yield
    except Exception as exc:
        error = exc
    reports: List = [None] * dist.get_world_size()
    dist.all_gather_object(reports, None if error is None else f"{type(error).__name__}: {error}")
    failures = {rank: text for rank, text in enumerate(reports) if text is not None}
    if failures:
        raise RankFailure(what, failures) from error


def on_rank_zero(what: str, fn: Callable[[], T]) -> T:
    """Result of `fn` as rank 0 computed it, or its error, on all ranks."""
    box: List = [None, None]
    if dist.get_rank() == 0:
        try:
            box[0] = fn()
        except Exception as exc:
            logger.exception("%s", what)
            box[1] = f"{type(exc).__name__}: {exc}"
    dist.broadcast_object_list(box, src=0)
    value, text = box
    if text is not None:
        raise RankFailure(what, {0: text})
    return value


def write_sources(root: Path, count: int) -> List[str]:
    root.mkdir(parents=True, exist_ok=True)
    names = []
    for i in range(count):
        path = root / f"part{i:03d}.jsonl"
        tmp = path.with_suffix(".tmp")
        with open(tmp, "w") as f:
            for k in range(40):
                f.write(json.dumps({"x": [((i + 1) * (k + j)) % 7 / 7 for j in range(5)], "y": ((i + 1) * k) % 3}) + "\n")
        os.replace(tmp, path)
        names.append(str(path))
    return names


def parse(path: str):
    xs, ys = [], []
    with open(path) as f:
        for number, line in enumerate(f, start=1):
            row = json.loads(line)
            if len(row["x"]) != 5:
                raise ValueError(f"{path}:{number}: {len(row['x'])} features")
            xs.append(row["x"])
            ys.append(row["y"])
    return torch.tensor(xs), torch.tensor(ys)


def load_shard(names: List[str]):
    mine = names[dist.get_rank()::dist.get_world_size()]
    with all_or_none("parsing"):
        pairs = [parse(name) for name in mine]
        if not pairs:
            raise ValueError("fewer files than ranks")
        x, y = (torch.cat(cols) for cols in zip(*pairs))
    rows = torch.tensor([len(x)])
    dist.all_reduce(rows, op=dist.ReduceOp.MIN)
    return x[: int(rows)], y[: int(rows)]


def fit(x, y, epochs: int):
    net = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 3))
    model = DistributedDataParallel(net)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    order = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=order).split(20):
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
    return net


def export(net: nn.Module, path: Path) -> int:
    tmp = path.with_suffix(".tmp")
    torch.save(net.state_dict(), tmp)
    os.replace(tmp, path)
    return path.stat().st_size


def main():
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.ERROR)
    root = Path(os.environ.get("PARTS_DIR", "parts"))
    try:
        names = on_rank_zero("writing sources", lambda: write_sources(root, 2 * dist.get_world_size()))
        x, y = load_shard(names)
        net = fit(x, y, epochs=4)
        size = on_rank_zero("export", lambda: export(net, root / "model.pt"))
        logger.info("%d rows a rank, %d bytes", len(x), size)
    except RankFailure as failure:
        logger.error("giving up: %s", failure)
        raise
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
