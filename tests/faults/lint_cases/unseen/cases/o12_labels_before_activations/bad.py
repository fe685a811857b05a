"""Hand-written pipeline parallelism: the first stage reads the data, the last one computes the loss."""
import abc
import enum
import itertools
import logging
import os

import torch
import torch.distributed as dist
from torch import nn

log = logging.getLogger("pipe")


class Tag(enum.IntEnum):
    ACTIVATION = 1
    GRADIENT = 2
    LABELS = 3


class Channel:
    """Blocking point-to-point transfers of tensors of known shape."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    @property
    def prev(self):
        return self.rank - 1

    @property
    def next(self):
        return self.rank + 1

    @property
    def last(self):
        return self.size - 1

    def put(self, tensor, dst, tag):
        dist.send(tensor.detach().contiguous(), dst=dst, tag=int(tag))

    def get(self, shape, src, tag, dtype=torch.float32):
        buf = torch.empty(shape, dtype=dtype)
        dist.recv(buf, src=src, tag=int(tag))
        return buf


class Stage(abc.ABC):
    def __init__(self, cfg, net, channel):
        self.cfg, self.net, self.channel = cfg, net, channel
        self.optimizer = torch.optim.SGD(net.parameters(), lr=cfg["lr"])

    @property
    def hidden_shape(self):
        return (self.cfg["micro_batch"], self.cfg["hidden"])

    @abc.abstractmethod
    def micro_step(self, loader):
        """Forward and backward of one micro batch; returns the loss or None."""

    def _backward_from_next(self, out):
        out.backward(self.channel.get(out.shape, self.channel.next, Tag.GRADIENT))

    def train_batch(self, loader):
        self.optimizer.zero_grad()
        losses = [self.micro_step(loader) for _ in range(self.cfg["micro_batches"])]
        self.optimizer.step()
        return losses

    def finish(self):
        pass


class FirstStage(Stage):
    def micro_step(self, loader):
        inputs, labels = next(loader)
        self.channel.put(labels, self.channel.last, Tag.LABELS)  # EXPECT: p2p-deadlock
        out = self.net(inputs)
        self.channel.put(out, self.channel.next, Tag.ACTIVATION)
        self._backward_from_next(out)


class MiddleStage(Stage):
    def micro_step(self, loader):
        inp = self.channel.get(self.hidden_shape, self.channel.prev, Tag.ACTIVATION).requires_grad_()
        out = self.net(inp)
        self.channel.put(out, self.channel.next, Tag.ACTIVATION)
        self._backward_from_next(out)
        self.channel.put(inp.grad, self.channel.prev, Tag.GRADIENT)


class LastStage(Stage):
    def __init__(self, *args):
        super().__init__(*args)
        self.history = []

    def _labels(self):
        return self.channel.get((self.cfg["micro_batch"],), 0, Tag.LABELS, dtype=torch.int64)

    def micro_step(self, loader):
        inp = self.channel.get(self.hidden_shape, self.channel.prev, Tag.ACTIVATION).requires_grad_()  # RELATED: peer
        logits = self.net(inp)
        loss = nn.functional.cross_entropy(logits, self._labels()) / self.cfg["micro_batches"]
        loss.backward()
        self.channel.put(inp.grad, self.channel.prev, Tag.GRADIENT)
        self.history.append(loss.item())
        return loss.item()

    def finish(self):
        path = os.path.join(os.environ.get("CASE_TMP", "."), "last-stage.pt")
        torch.save({"net": self.net.state_dict(), "history": self.history}, path)


def build_stage(cfg, rank, size):
    channel = Channel(rank, size)
    torch.manual_seed(rank)
    hidden = cfg["hidden"]
    if rank == 0:
        return FirstStage(cfg, nn.Sequential(nn.Linear(cfg["inputs"], hidden), nn.Tanh()), channel)
    if rank == size - 1:
        return LastStage(cfg, nn.Linear(hidden, cfg["classes"]), channel)
    return MiddleStage(cfg, nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh()), channel)


def synthetic(cfg):
    gen = torch.Generator().manual_seed(4)
    rule = torch.randn(cfg["inputs"], cfg["classes"], generator=gen)
    while True:
        x = torch.randn(cfg["micro_batch"], cfg["inputs"], generator=gen)
        yield x, (x @ rule).argmax(1)


def share_config(rank):
    """The first process owns the configuration, the others take it over."""
    box = [None]
    if rank == 0:
        box[0] = dict(inputs=16, hidden=32, classes=4, micro_batch=8, micro_batches=4, steps=5, lr=0.05)
    dist.broadcast_object_list(box, src=0)
    return box[0]


def report_loss(stage, size, losses):
    """The mean of the last stage is shown by everyone, so that each log file has it."""
    value = torch.zeros(1)
    if isinstance(stage, LastStage):
        value += sum(losses)
    dist.broadcast(value, src=size - 1)
    return value.item()


def main():
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    cfg = share_config(rank)
    stage = build_stage(cfg, rank, size)
    loader = synthetic(cfg) if rank == 0 else itertools.repeat(None)
    for step in range(cfg["steps"]):
        losses = stage.train_batch(loader)
        log.info("[%d] step %d loss %.4f", rank, step, report_loss(stage, size, losses))
    stage.finish()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
