"""Results that a rank loses, or that are those of its share only."""

import pytest

from tests.unit.lint.programs import program_from_sources


def habits(**files: str) -> list[tuple[str, str]]:
    sources = {name: (f"{name}.py", text) for name, text in files.items()}
    found = program_from_sources(sources).analyze()
    return [(each.kind, each.location.file) for each in found if each.kind.startswith("habit-")]


EDITS = """
import deepspeed, torch

def start(net):
    with deepspeed.zero.GatheredParameters({arguments}):
        {edit}
"""


@pytest.mark.parametrize(
    ("arguments", "edit", "count"),
    [
        ("net.head.weight", "net.head.weight.data.zero_()", 1),
        ("list(net.parameters())", "torch.nn.init.normal_(net.head.weight)", 1),
        ("net.head.weight, modifier_rank=None", "net.head.weight.data[0] = 0", 1),
        ("net.head.weight, modifier_rank=0", "net.head.weight.data.zero_()", 0),
        ("net.head.weight, **options", "net.head.weight.data.zero_()", 0),
        ("net.head.weight", "print(net.head.weight.norm())", 0),
        ("net.head.weight", "shadow.copy_(net.head.weight)", 0),
        ("net.head.weight", "other.weight.data.copy_(net.head.weight)", 0),
        ("list(net.parameters())", "for p in net.parameters(): p.data.zero_()", 1),
        (
            "list(net.parameters())",
            "for own, p in zip(full.parameters(), net.parameters()): own.data.copy_(p)",
            0,
        ),
        (
            "list(net.parameters())",
            "for own, p in zip(full.parameters(), net.parameters()): p.data.copy_(own)",
            1,
        ),
    ],
)
def test_edits_of_gathered_parameters(arguments, edit, count):
    assert len(habits(train=EDITS.format(arguments=arguments, edit=edit))) == count


PREPARES = """
import torch
from accelerate import Accelerator

def main(net, loader):
    accelerator = Accelerator({setting})
    optimizer = torch.optim.AdamW(net.parameters())
    {prepare}
    for batch in loader:
        with accelerator.accumulate(net):
            accelerator.backward(net(batch).mean())
            optimizer.step()
"""


@pytest.mark.parametrize(
    ("prepare", "count"),
    [
        ("net, loader = accelerator.prepare(net, loader)", 1),
        ("optimizer, loader = accelerator.prepare(optimizer, loader)", 1),
        ("net, optimizer, loader = accelerator.prepare(net, optimizer, loader)", 0),
        ("net, optimizer = accelerator.prepare(*parts)", 0),
        (
            (
                "net = accelerator.prepare(net)\n"
                "    optimizer, loader = accelerator.prepare(optimizer, loader)"
            ),
            0,
        ),
    ],
)
def test_what_accelerate_does_not_prepare(prepare, count):
    text = PREPARES.format(setting="gradient_accumulation_steps=4", prepare=prepare)
    assert len([kind for kind, _ in habits(train=text) if kind == "habit-state"]) == count


PREDICTS = """
import lightning as L
import torch

def main(net, loader):
    trainer = L.Trainer({devices})
    found = trainer.predict(net, loader)
    {use}
"""


@pytest.mark.parametrize(
    ("devices", "use", "count"),
    [
        ("devices=8", "if trainer.is_global_zero:\n        torch.save(found, 'found.pt')", 1),
        ("devices=1", "if trainer.is_global_zero:\n        torch.save(found, 'found.pt')", 0),
        ("devices=8", "torch.save(found, f'{trainer.global_rank}.pt')", 0),
        (
            "devices=8",
            (
                "found = net.all_gather(found)\n    if trainer.is_global_zero:\n"
                "        torch.save(found, 'found.pt')"
            ),
            0,
        ),
    ],
)
def test_predictions_of_one_ranks_share(devices, use, count):
    text = PREDICTS.format(devices=devices, use=use)
    assert len([kind for kind, _ in habits(train=text) if kind == "habit-result"]) == count


GATHERS = """
import torch
import torch.distributed as dist
{decorator}
def collect(x):
    parts = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    {own}
    return torch.cat(parts)
"""
LOSS = """
import torch.nn.functional as F
from gathers import collect
def loss(image, text, labels):
    images, texts = collect(image), collect(text)
    return {loss}
"""
CONTRAST = "F.cross_entropy(image @ texts.T, labels)"


@pytest.mark.parametrize(
    ("decorator", "own", "loss", "count"),
    [
        ("", "pass", CONTRAST, 1),
        ("", "parts[dist.get_rank()] = x", CONTRAST, 0),
        ("@torch.no_grad()", "pass", CONTRAST, 0),
        ("", "pass", "(images == texts).mean()", 0),
    ],
)
def test_gradients_that_all_gather_drops(decorator, own, loss, count):
    gathers = GATHERS.format(decorator=decorator, own=own)
    found = habits(train=LOSS.format(loss=loss), gathers=gathers)
    assert len([kind for kind, _ in found if kind == "habit-result"]) == count
