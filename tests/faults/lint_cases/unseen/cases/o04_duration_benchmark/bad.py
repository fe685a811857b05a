"""Throughput benchmarks for small models: a fixed number of steps, or a fixed duration."""
import abc
import argparse
import json
import logging
import statistics
import time
from enum import Enum

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

logger = logging.getLogger("bench")
_REGISTRY = {}


def register(name):
    def wrap(cls):
        cls.name = name
        _REGISTRY[name] = cls
        return cls

    return wrap


class Mode(Enum):
    TRAIN = "train"
    INFERENCE = "inference"


class ModelBenchmark(abc.ABC):
    """Template: preprocess, one loop per mode, postprocess."""

    def __init__(self, argv=None):
        self._argv = argv
        self._args = None
        self._model = None
        self._records = []
        self._start = None
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        self._world = dist.get_world_size() if dist.is_initialized() else 1
        self._result = {}

    # -- command line ---------------------------------------------------------------------------------------------
    def _add_parser_arguments(self):
        parser = argparse.ArgumentParser()
        parser.add_argument("--duration", type=float, default=0.8, help="seconds; 0 turns the limit off")
        parser.add_argument("--num_steps", type=int, default=0, help="0 turns the limit off")
        parser.add_argument("--num_warmup", type=int, default=4)
        parser.add_argument("--batch_size", type=int, default=8)
        parser.add_argument("--records", type=int, default=40000)
        return parser

    # -- hooks for the models -------------------------------------------------------------------------------------
    @abc.abstractmethod
    def _create_model(self):
        ...

    @abc.abstractmethod
    def _make_batch(self, record):
        ...

    # -- template -------------------------------------------------------------------------------------------------
    def _generate_dataset(self):
        """Each process hashes the record ids of its own shard; the last shards of the corpus are the long ones."""
        state, out = 17 + self._rank, []
        for _ in range(self._args.records * (1 + 9 * self._rank)):
            state = (state * 1103515245 + 12345) & 0x7FFFFFFF
            out.append(state)
        return out

    def _preprocess(self):
        self._args = self._add_parser_arguments().parse_args(self._argv)
        torch.manual_seed(0)
        model = self._create_model()
        self._model = DDP(model) if self._world > 1 else model
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._records = self._generate_dataset()

    def _is_finished(self, curr_step, curr_time):
        """Whether the step limit or the duration is used up."""
        total = self._args.num_warmup + self._args.num_steps
        out_of_steps = self._args.num_steps > 0 and curr_step >= total
        out_of_time = self._args.duration > 0 and curr_time - self._start >= self._args.duration  # RELATED: taint-source
        return out_of_steps or out_of_time

    def _train_step(self, batch):
        begin = time.perf_counter()
        self._optimizer.zero_grad()
        loss = self._model(batch).float().pow(2).mean()
        loss.backward()  # RELATED: hidden-collective
        self._optimizer.step()
        return (time.perf_counter() - begin) * 1000

    def _inference_step(self, batch):
        net = self._model.module if isinstance(self._model, DDP) else self._model
        begin = time.perf_counter()
        with torch.no_grad():
            net(batch)
        return (time.perf_counter() - begin) * 1000

    def _loop_inference(self):
        durations, step = [], 0
        self._start = time.perf_counter()
        while not (step >= 20 or time.perf_counter() - self._start > self._args.duration):
            durations.append(self._inference_step(self._make_batch(self._records[step % len(self._records)])))
            step += 1
        return durations

    def _loop_train(self):
        durations, step = [], 0
        self._start = time.perf_counter()
        while not self._is_finished(step, time.perf_counter()):  # EXPECT: uneven-loop
            elapsed = self._train_step(self._make_batch(self._records[step % len(self._records)]))
            step += 1
            if step > self._args.num_warmup:
                durations.append(elapsed)
        return durations

    def _benchmark(self, mode):
        durations = self._loop_train() if mode is Mode.TRAIN else self._loop_inference()
        median = statistics.median(durations) if durations else 0.0
        logger.info("rank %d %s steps %d", self._rank, mode.value, len(durations))
        if self._world > 1:
            table = [None] * self._world
            dist.all_gather_object(table, median)
            median = max(table)
        self._result[f"{mode.value}_step_ms"] = median

    def run(self):
        self._preprocess()
        for mode in (Mode.TRAIN, Mode.INFERENCE):
            self._benchmark(mode)
        if self._rank == 0:
            print(json.dumps({"benchmark": self.name, **self._result}))
        return self._result


@register("mlp")
class MLPBenchmark(ModelBenchmark):
    def _create_model(self):
        return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16))

    def _make_batch(self, record):
        gen = torch.Generator().manual_seed(record)
        return torch.randn(self._args.batch_size, 64, generator=gen)


@register("lstm")
class LSTMBenchmark(ModelBenchmark):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(16, 32, batch_first=True)
            self.head = nn.Linear(32, 4)

        def forward(self, x):
            return self.head(self.rnn(x)[0][:, -1])

    def _create_model(self):
        return self.Net()

    def _make_batch(self, record):
        gen = torch.Generator().manual_seed(record)
        return torch.randn(self._args.batch_size, 12, 16, generator=gen)


def main():
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    for name in sorted(_REGISTRY):
        _REGISTRY[name](argv=[]).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
