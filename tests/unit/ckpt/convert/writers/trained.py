"""A model and optimizer after STEPS steps, and the losses of the following steps."""

import torch

from holdfast.core.findings import Unknown
from tests.golden.checkpoints.model import STEPS, loss_of, model, optimizer_of
from tests.unit.ckpt.convert.streamed import neutral

MORE = 2


def schedule_of(optimizer):
    """Return a scheduler whose position affects the following steps."""
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def train(module, optimizer, scheduler, first, last):
    """Run steps ``first`` to ``last``; return their losses."""
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
    """Return an untrained, differently initialized model with optimizer and scheduler."""
    module = wrap(model(**options))
    with torch.no_grad():
        for each in module.parameters():
            each.fill_(0.5)
    optimizer = optimizer_of(module)
    return module, optimizer, schedule_of(optimizer)


def trained(folder, wrap=lambda module: module, *, values=(), **options):
    """Return contents and state_dict after STEPS steps, and the losses of MORE steps after it."""
    module = wrap(model(**options))
    optimizer = optimizer_of(module)
    scheduler = schedule_of(optimizer)
    train(module, optimizer, scheduler, 0, STEPS)
    values = {
        "epoch": 1,
        **{f"scheduler.{key}": each for key, each in scheduler.state_dict().items()},
        **dict(values),
    }
    contents = neutral(folder, module, optimizer, step=STEPS, values=values)
    state = {name: each.clone() for name, each in module.state_dict().items()}
    return contents, state, train(module, optimizer, scheduler, STEPS, STEPS + MORE)


def same(found, expected):
    """Assert that two state_dicts have the same names and bits."""
    assert list(found) == list(expected) or set(found) == set(expected)
    return all(
        torch.equal(found[name], each) and found[name].dtype == each.dtype
        for name, each in expected.items()
    )


UNKNOWN = Unknown("it does not say")
