"""Habits in code for training frameworks."""

import pytest

from tests.unit.lint.programs import program_from_sources


def habits(text: str) -> list[tuple[str, int | None]]:
    found = program_from_sources({"train": ("train.py", text)}).analyze()
    return [(each.kind, each.location.line) for each in found if each.kind.startswith("habit-")]


SCHEDULE = """
from accelerate import Accelerator
from transformers import get_scheduler

def main(args, model, optimizer, loader):
    accelerator = Accelerator({setting})
    {before}
    schedule = get_scheduler("cosine", optimizer, 100, {steps})
    model, optimizer, loader{prepared} = accelerator.prepare(model, optimizer, loader{prepared})
    step = 0
    for batch in loader:
        schedule.step()
        step += 1
        if step >= args.max_steps:
            break
"""
PREPARED = "loader = accelerator.prepare(loader)"


@pytest.mark.parametrize(
    ("setting", "before", "steps", "prepared", "count"),
    [
        ("", "", "args.max_steps", ", schedule", 1),
        ("", "total = args.max_steps", "total", ", schedule", 1),
        ("", PREPARED, "args.epochs * len(loader)", ", schedule", 1),
        ("", "", "args.max_steps * accelerator.num_processes", ", schedule", 0),
        ("", "total = args.max_steps * accelerator.num_processes", "total", ", schedule", 0),
        ("", "", "args.epochs * len(loader)", ", schedule", 0),
        ("", "", "args.max_steps", "", 0),
        ("", "", "args.schedule_steps", ", schedule", 0),
        ("step_scheduler_with_optimizer=False", "", "args.max_steps", ", schedule", 0),
    ],
)
def test_a_prepared_schedule_counts_the_steps_of_all_processes(
    setting, before, steps, prepared, count
):
    text = SCHEDULE.format(setting=setting, before=before, steps=steps, prepared=prepared)
    assert len(habits(text)) == count


MADE_ELSEWHERE = """
from accelerate import Accelerator
from torch.optim.lr_scheduler import LinearLR

class Trainer:
    def __init__(self, config, model, optimizer):
        self.config, self.accelerator = config, Accelerator()
        self.model, self.optimizer = model, optimizer

    def make(self, optimizer):
        if self.config.constant:
            return LinearLR(optimizer, total_iters=1)
        return LinearLR(optimizer, total_iters={steps})

    def train(self, loader):
        schedule = self.make(self.optimizer)
        self.model, loader, schedule = self.accelerator.prepare(self.model, loader, schedule)
        for step in range(self.config.steps):
            schedule.step()
"""


@pytest.mark.parametrize(
    ("steps", "count"),
    [("self.config.steps", 1), ("self.config.steps * self.accelerator.num_processes", 0)],
)
def test_a_schedule_of_another_method_counts_the_steps_of_all_processes(steps, count):
    assert len(habits(MADE_ELSEWHERE.format(steps=steps))) == count


GATHER = """
def {name}(accelerator, model, {loader}, metric, size):
    for batch in {loader}:
        logits = model(**batch)
        found, labels = accelerator.{gather}((logits, batch["labels"])){cut}
        metric.add_batch(predictions=found, references=labels)
    return metric.compute()
"""


@pytest.mark.parametrize(
    ("name", "loader", "gather", "cut", "count"),
    [
        ("evaluate", "loader", "gather", "", 1),
        ("run", "eval_loader", "gather", "", 1),
        ("evaluate", "loader", "gather_for_metrics", "", 0),
        ("evaluate", "loader", "gather", "; found = found[: size]", 0),
        ("train", "train_loader", "gather", "", 0),
    ],
)
def test_gathered_results_count_repeated_samples(name, loader, gather, cut, count):
    text = GATHER.format(name=name, loader=loader, gather=gather, cut=cut)
    assert len(habits(text)) == count


SPAWN = """
import os
import torch.multiprocessing as mp
import torch.distributed as dist

def free_port():
    return 29500

def worker({parameters}):
    {port}
    dist.init_process_group("gloo", rank=rank, world_size=4)
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(worker, args={arguments}, nprocs=4)
"""
OWN_PORT = 'os.environ["MASTER_PORT"] = str(free_port())'
GIVEN = 'os.environ["MASTER_PORT"] = str(port)'
KEPT = 'if "MASTER_PORT" not in os.environ:\n        os.environ["MASTER_PORT"] = str(free_port())'


@pytest.mark.parametrize(
    ("parameters", "port", "arguments", "kinds"),
    [
        ("args, rank", "pass", "(args,)", ["habit-local-rank"]),
        ("rank, args", "pass", "(args, 4)", ["habit-local-rank"]),
        ("rank, args, size", "pass", "(args,)", ["habit-local-rank"]),
        ("rank, args", OWN_PORT, "(args,)", ["habit-name"]),
        ("rank, args", "pass", "(args,)", []),
        ("rank, args, size=4", "pass", "(args,)", []),
        ("rank, *args", "pass", "(args, 4)", []),
        ("rank, port", GIVEN, "(free_port(),)", []),
        ("rank, args", KEPT, "(args,)", []),
    ],
)
def test_spawn_passes_the_index_of_the_process_first(parameters, port, arguments, kinds):
    text = SPAWN.format(parameters=parameters, port=port, arguments=arguments)
    assert [kind for kind, _ in habits(text)] == kinds


PREPARE = """
import lightning as L

class Data(L.LightningDataModule):
    {first}
    def prepare_data(self):
        {body}

    def setup(self, stage):
        {setup}

L.Trainer({trainer}).fit(model, Data())
"""
READ = "self.size = len(self.labels)"


@pytest.mark.parametrize(
    ("first", "body", "setup", "trainer", "count"),
    [
        ("", "self.labels = load()", READ, 'strategy="ddp"', 1),
        ("", "self.labels = load()", READ, "devices=4", 1),
        ("", "self.labels = load()", READ, "devices=1", 0),
        ("", "self.labels = load()", "pass", "devices=4", 0),
        ("", "download()", READ, "devices=4", 0),
        ("", "self.labels = load()", f"self.labels = load(); {READ}", "devices=4", 0),
        ("labels = ()\n", "load()", READ, "devices=4", 0),
    ],
)
def test_prepare_data_runs_on_one_process_of_a_host(first, body, setup, trainer, count):
    text = PREPARE.format(first=first, body=body, setup=setup, trainer=trainer)
    assert len(habits(text)) == count


RUN = """
import wandb
import torch.distributed as dist

def main(args, loader):
    rank = dist.get_rank()
    {start}
    for step, loss in enumerate(loader):
        {use}
"""
START = "if rank == 0:\n        wandb.init(project='x')"
ELSE = START + "\n    else:\n        wandb.init(mode='disabled')"


@pytest.mark.parametrize(
    ("start", "use", "count"),
    [
        (START, "wandb.log({'loss': loss})", 1),
        (START, "if step % 10 == 0:\n            wandb.log({'loss': loss})", 1),
        (START, "print(wandb.run.name)", 1),
        (START, "if rank == 0:\n            wandb.log({'loss': loss})", 0),
        (START, "if wandb.run is not None:\n            wandb.log({'loss': loss})", 0),
        (START, "if args.use_wandb:\n            wandb.log({'loss': loss})", 0),
        (ELSE, "wandb.log({'loss': loss})", 0),
        ("wandb.init(project='x')", "wandb.log({'loss': loss})", 0),
    ],
)
def test_a_run_exists_on_the_ranks_that_create_it(start, use, count):
    assert len(habits(RUN.format(start=start, use=use))) == count
