"""Exits and saves judged by names: notes, and none if a test or agreement is visible."""

from __future__ import annotations

import textwrap

import pytest

from holdfast.core.findings import Level
from holdfast.lint.run import lint_paths

HEAD = "import torch\nimport torch.distributed as dist\n"

#: name: (rule, broken program with the line at fault marked, corrected program)
CASES = {
    "an infinite loss skips the backward": (
        "local-early-exit",
        """
        def train(runner, loader):
            runner.wrap(torch.nn.parallel.DistributedDataParallel)
            for batch in loader:
                loss, bad = runner.step(batch), False
                if torch.isnan(loss).any():
                    bad = True
                if bad:
                    continue  # found
                loss.backward()
        """,
        """
        def train(runner, loader):
            runner.wrap(torch.nn.parallel.DistributedDataParallel)
            for batch in loader:
                loss = reduce_loss(runner.step(batch))
                if torch.isnan(loss).any():
                    continue
                loss.backward()
        """,
    ),
    "a batch that could not be read": (
        "local-early-exit",
        """
        def train(runner, loader):
            runner.wrap(torch.nn.parallel.DistributedDataParallel)
            for batch in loader:
                if batch is None:
                    continue  # found
                runner.loss(batch).backward()
        """,
        """
        def train(runner, loader):
            for batch in loader:
                if batch is None:
                    continue
                runner.loss(batch).backward()
        """,
    ),
    "a failed backward is skipped": (
        "raise-before-collective",
        """
        def train(runner, loader):
            runner.wrap(torch.nn.parallel.DistributedDataParallel)
            for batch in loader:
                try:
                    runner.loss(batch).backward()  # found
                except RuntimeError as error:
                    if "out of memory" not in str(error):
                        raise
                    torch.cuda.empty_cache()
        """,
        """
        def train(runner, loader):
            runner.wrap(torch.nn.parallel.DistributedDataParallel)
            for batch in loader:
                try:
                    runner.loss(batch).backward()
                except RuntimeError as error:
                    runner.report(error)
                    raise
        """,
    ),
    "a barrier behind the loop that a rank leaves, which all ranks reach": (
        "local-early-exit",
        """
        def train(runner, loader, epochs):
            runner.wrap(torch.nn.parallel.DistributedDataParallel)
            for epoch in range(epochs):
                for batch in loader:
                    loss = runner.step(batch)
                    if torch.isnan(loss):
                        break  # found
                    loss.backward()
                dist.barrier()
        """,
        """
        def train(runner, loader, epochs):
            for epoch in range(epochs):
                for batch in loader:
                    loss = runner.step(batch)
                    if torch.isnan(loss):
                        break
                    runner.log(loss)
                dist.barrier()
        """,
    ),
    "each rank stops by its own score": (
        "local-early-exit",
        """
        def fit(runner, epochs):
            runner.wrap(torch.nn.parallel.DistributedDataParallel)
            for epoch in range(epochs):
                runner.train_epoch(epoch)
                runner.stopper.update(runner.evaluate())
                if runner.stopper.early_stop:
                    break  # found
        """,
        """
        def fit(runner, epochs):
            runner.wrap(torch.nn.parallel.DistributedDataParallel)
            for epoch in range(epochs):
                runner.train_epoch(epoch)
                runner.stopper.update(reduce_mean(runner.evaluate()))
                if runner.stopper.early_stop:
                    break
        """,
    ),
    "a program that never calls set_epoch": (
        "missing-set-epoch",
        """
        def loader_of(data, make_loader):
            return make_loader(data, torch.utils.data.DistributedSampler(data))

        def fit(runner, epochs):
            for epoch in range(epochs):  # found
                runner.train(epoch)
        """,
        """
        def loader_of(data, make_loader):
            return make_loader(data, torch.utils.data.DistributedSampler(data, shuffle=False))

        def fit(runner, epochs):
            for epoch in range(epochs):
                runner.train(epoch)
        """,
    ),
    "a sharded model saved on one rank": (
        "rank-guarded-sharded-io",
        """
        def save(cfg, trainer, model):
            setup_fsdp(cfg.fsdp_config)
            trainer.train()
            if cfg.local_rank in [-1, 0]:
                model.save_pretrained(cfg.output_dir)  # found
        """,
        """
        def save(cfg, trainer, model):
            setup_fsdp(cfg.fsdp_config)
            trainer.train()
            if cfg.fsdp:
                trainer.save_model(cfg.output_dir)
            elif cfg.local_rank in [-1, 0]:
                model.save_pretrained(cfg.output_dir)
        """,
    ),
    "functions of files that are not read": (
        "rank-guarded-collective",
        """
        from .processes import barrier, is_main_process

        def save(state):
            if is_main_process():
                barrier()  # found
        """,
        """
        from .processes import barrier, is_main_process

        def save(state):
            if is_main_process():
                print(state)
            barrier()
        """,
    ),
    "a communicator that is passed in": (
        "rank-early-exit",
        """
        def delete(gang, folder):
            if gang.rank == 0:
                if not folder.exists():
                    return  # found
                folder.rmdir()
            gang.barrier()
        """,
        """
        def delete(gang, folder):
            if gang.rank == 0:
                if folder.exists():
                    folder.rmdir()
            gang.barrier()
        """,
    ),
}


def found(tmp_path, text):
    (tmp_path / "main.py").write_text(HEAD + textwrap.dedent(text))
    return [
        (item.rule, item.finding.level, item.finding.subject.line)
        for item in lint_paths([tmp_path]).findings
    ]


@pytest.mark.parametrize("name", CASES)
def test_a_name_gives_a_note(tmp_path, name):
    rule, broken, corrected = CASES[name]
    lines = (HEAD + textwrap.dedent(broken)).splitlines()
    marked = [number for number, line in enumerate(lines, 1) if "# found" in line]
    assert (rule, Level.NOTE, marked[0]) in found(tmp_path, broken)
    assert rule not in [each for each, _, _ in found(tmp_path, corrected)]


def test_files_of_a_package_without_init_are_one_program(tmp_path):
    folder = tmp_path / "lib" / "core" / "training"
    folder.mkdir(parents=True)
    (folder / "ranks.py").write_text(
        "import torch.distributed as dist\ndef wait():\n    dist.barrier()\n"
    )
    loop = folder / "loop" / "steps.py"
    loop.parent.mkdir()
    loop.write_text(
        "import torch.distributed as dist\n"
        "from ..ranks import wait\n"
        "from lib.core.training.ranks import wait as again\n"
        "if dist.get_rank() == 0:\n    wait()\n"
        "if dist.get_rank() == 1:\n    again()\n"
    )
    findings = lint_paths([folder]).findings
    assert [item.finding.subject.line for item in findings] == [5, 7]
