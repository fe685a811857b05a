"""A model and its optimizer after some steps, and the losses of the steps after those: what a writer has to carry."""

import torch

from holdfast.findings import Unknown
from tests.actions.conversion.streamed import neutral
from tests.saved.model import STEPS, loss_of, model, optimizer_of

MORE = 2


def schedule_of(optimizer):
    """A learning rate scheduler whose place matters to the steps that follow."""
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def train(module, optimizer, scheduler, first, last):
    """Steps ``first`` to ``last``; gives their losses."""
    losses = []
    for step in range(first, last):
        loss = loss_of(module, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def fresh(wrap=lambda module: module, **options):
    """An untrained model of other numbers, its optimizer and scheduler: what a program makes before it loads."""
    module = wrap(model(**options))
    with torch.no_grad():
        for each in module.parameters():
            each.fill_(0.5)
    optimizer = optimizer_of(module)
    return module, optimizer, schedule_of(optimizer)


def trained(folder, wrap=lambda module: module, *, values=(), **options):
    """Contents of a checkpoint after STEPS steps, the model's state then, and the losses of the MORE steps after it."""
    module = wrap(model(**options))
    optimizer = optimizer_of(module)
    scheduler = schedule_of(optimizer)
    train(module, optimizer, scheduler, 0, STEPS)
    values = {"epoch": 1, **{f"scheduler.{key}": each for key, each in scheduler.state_dict().items()}, **dict(values)}
    contents = neutral(folder, module, optimizer, step=STEPS, values=values)
    state = {name: each.clone() for name, each in module.state_dict().items()}
    return contents, state, train(module, optimizer, scheduler, STEPS, STEPS + MORE)


def same(found, expected):
    """Two state_dicts hold the same names with the same bits."""
    assert list(found) == list(expected) or set(found) == set(expected)
    return all(torch.equal(found[name], each) and found[name].dtype == each.dtype for name, each in expected.items())


UNKNOWN = Unknown("it does not say")
