"""Tests of ``no_sync`` and of the step: the last micro-batch of a window has to be averaged."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import contextlib
import torch

def train(model, optimizer, loader, accelerator, config, every=4):
"""
FOUND = {
    "a variable": """
    for at, batch in enumerate(loader):
        context = contextlib.nullcontext
        if at % every != 0:
            context = model.no_sync
        with context():
            model(batch).backward()
        if (at + 1) % every == 0:
            optimizer.step()""",
    "an expression": """
    for at in range(64):
        ends = (at + 1) % config.every == 0
        with model.no_sync() if not at % config.every == 0 else contextlib.nullcontext():
            model(loader).backward()
        if ends or at == len(loader) - 1:
            optimizer.step()""",
    "a branch": """
    for at, batch in enumerate(loader, start=1):
        if at % 8 == 0:
            with accelerator.no_sync(model):
                accelerator.backward(model(batch))
        else:
            accelerator.backward(model(batch))
        if at % 8 == 0:
            optimizer.step()""",
}
FINE = {
    "all but the last": """
    for at, batch in enumerate(loader):
        context = contextlib.nullcontext
        if (at + 1) % every != 0:
            context = model.no_sync
        with context():
            model(batch).backward()
        if (at + 1) % every == 0:
            optimizer.step()""",
    "one test": """
    for at, batch in enumerate(loader):
        ends = (at + 1) % every == 0 or at == len(loader) - 1
        with contextlib.nullcontext() if ends else model.no_sync():
            model(batch).backward()
        if ends:
            optimizer.step()""",
    "another window": """
    for at, batch in enumerate(loader):
        with model.no_sync() if at % every else contextlib.nullcontext():
            model(batch).backward()
        if (at + 1) % config.every == 0:
            optimizer.step()""",
    "averaged by hand": """
    for at, batch in enumerate(loader):
        with model.no_sync() if at % every else contextlib.nullcontext():
            model(batch).backward()
        if (at + 1) % every == 0:
            all_reduce_gradients(model)
            optimizer.step()""",
}


def kinds(body):
    source = f"{HEAD}{body}\n"
    program = program_from_sources({"main": ("main.py", source)})
    return [each.kind for each in program.analyze() if each.kind.startswith("no-sync")]


@pytest.mark.parametrize("name", FOUND)
def test_a_step_after_a_batch_under_no_sync_is_found(name):
    assert kinds(FOUND[name]) == ["no-sync-step"]


@pytest.mark.parametrize("name", FINE)
def test_a_step_after_an_averaged_batch_is_fine(name):
    assert kinds(FINE[name]) == []
