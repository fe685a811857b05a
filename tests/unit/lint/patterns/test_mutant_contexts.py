"""Bugs in contexts that mutants of public programs showed: samplers, steps, messages, exits."""

import pytest

from tests.unit.lint.programs import program_from_sources

LOADER = """\
from torch.utils.data import DataLoader, DistributedSampler

def make_loader(data, batches, distributed):
    sampler = {sampler}
    {between}
    loader = DataLoader({arguments})
    return loader, sampler
"""
MADE = "DistributedSampler(data, shuffle=True)"
ATTRIBUTE = """\
from torch.utils.data import DataLoader, DistributedSampler

class Data:
    def __init__(self, data):
        self.data, self.sampler = data, None
        self.loader = DataLoader(self.data, shuffle=True)
        self.sampler = DistributedSampler(self.data)

    def epoch(self):
        {use}
"""
HANDLE = """\
import torch.distributed as dist

class Center:
    def __init__(self):
        self.work = None

    def start(self, total):
        self.total = total
        self.work = dist.all_reduce(self.total, async_op=True)

    def finish(self):
        self.work{read}
        return self.total / dist.get_world_size()
"""
EPOCHS = """\
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

def main(data, step):
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, sampler=sampler)
    try:
        for epoch in range(3):
            {call}
            for batch in loader:
                step(batch)
    finally:
        torch.distributed.destroy_process_group()

main(None, print)
"""
STEP = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = DDP(model), optimizer

    def step(self, batch):
        loss = self.model(batch).sum()
        try:
            loss.backward()
        except RuntimeError:
            {handler}
        self.optimizer.step()

    def fit(self, batches):
        {call}
"""
EXCHANGE = """\
import torch
import torch.distributed as dist

def swap(tensor, peer):
    received = torch.empty_like(tensor)
    if peer is None:
        return received
    if dist.get_rank() < peer:
        dist.send(tensor, dst=peer)
        dist.recv(received, src=peer)
    else:
        dist.{first}
        dist.{second}
    return received

swap(torch.ones(1), 1 - dist.get_rank())
"""
EXIT = """\
import torch
from torch.nn.parallel import DistributedDataParallel

class AllReduce(torch.autograd.Function):
    {decorator}
    def backward(ctx, gradients):
        return gradients

def train(model, batches, criterion, optimizer):
    model = DistributedDataParallel(model)
    for batch in batches:
        loss = criterion(model(batch))
        if not torch.isfinite(loss):
            continue
        loss.backward()
        optimizer.step()
"""


def lines(text, kind):
    found = program_from_sources({"main": ("main.py", text)}).analyze()
    return [divergence.location.line for divergence in found if divergence.kind == kind]


@pytest.mark.parametrize(
    ("sampler", "between", "arguments"),
    [
        (MADE, "pass", "data, batch_size=8, shuffle=True"),
        (MADE, "sampler.set_epoch(3)", "dataset=data, shuffle=True"),
        (f"{MADE} if distributed else None", "pass", "data, shuffle=sampler is None"),
    ],
)
def test_a_loader_without_the_sampler_of_its_data_is_found(sampler, between, arguments):
    text = LOADER.format(sampler=sampler, between=between, arguments=arguments)
    assert lines(text, "habit-sampler") == [6]


@pytest.mark.parametrize(
    ("between", "arguments"),
    [
        ("pass", "data, sampler=sampler"),
        ("pass", "data, 8, False, sampler"),
        ("pass", "data, batch_sampler=batches"),
        ("pass", "data, **batches"),
        ("pass", "batches, shuffle=True"),
        ("train = batches(data, sampler)", "data, shuffle=False"),
        ("batches.sampler = sampler", "data, shuffle=False"),
    ],
)
def test_a_sampler_in_use_or_of_other_data_is_fine(between, arguments):
    text = LOADER.format(sampler=MADE, between=between, arguments=arguments)
    assert lines(text, "habit-sampler") == []


def test_a_call_that_gets_the_loader_and_its_sampler_only_sets_the_epoch():
    text = LOADER.format(sampler=MADE, between="pass", arguments="data, shuffle=True")
    passed = "    batches(loader, epochs=sampler)\n    return loader\n"
    assert lines(text.replace("    return loader, sampler\n", passed), "habit-sampler") == [6]


@pytest.mark.parametrize(
    ("read", "lost"), [(" is not None", [9]), (".wait()", []), (" = None", [9]), (" or True", [])]
)
def test_a_handle_that_is_only_tested_for_none_is_lost(read, lost):
    assert lines(HANDLE.format(read=read), "handle") == lost


@pytest.mark.parametrize(("use", "found"), [("set_epoch(3)", [6]), ("sampler", [])])
def test_a_sampler_in_an_attribute_counts_if_its_class_does_not_use_it(use, found):
    use = "self.sampler.set_epoch(3)" if "(" in use else "run(self.sampler)"
    assert lines(ATTRIBUTE.format(use=use), "habit-sampler") == found


@pytest.mark.parametrize("guard", ["", "if dist.get_rank() == 0: "])
def test_partners_that_one_function_distinguishes_need_not_be_all_ranks(guard):
    send, recv = "send(tensor, dst=peer)", "recv(received, src=peer)"
    for first, second, found in ((send, recv, [12]), (recv, send, [])):
        text = EXCHANGE.format(first=first, second=second).replace("\nswap(", f"\n{guard}swap(")
        assert lines(text, "paired") == found


@pytest.mark.parametrize(("call", "found"), [("pass", [9]), ("sampler.set_epoch(epoch)", [])])
def test_an_epoch_loop_in_a_try_needs_set_epoch(call, found):
    assert lines(EPOCHS.format(call=call), "epoch") == found


def test_a_failed_backward_in_a_step_that_a_loop_calls_is_found():
    call = "for batch in batches:\n            self.step(batch)"
    assert lines(STEP.format(handler="return", call=call), "swallowed") == [11]
    assert lines(STEP.format(handler="raise", call=call), "swallowed") == []


def test_a_step_that_no_loop_calls_is_no_training():
    assert lines(STEP.format(handler="return", call="self.step(batches)"), "swallowed") == []
    other = "for batch in batches:\n            self.optimizer.step()"
    assert lines(STEP.format(handler="return", call=other), "swallowed") == []


def test_both_sides_of_a_test_that_send_first_are_found():
    send, recv = "send(tensor, dst=peer)", "recv(received, src=peer)"
    assert lines(EXCHANGE.format(first=send, second=recv), "paired") == [12]
    assert lines(EXCHANGE.format(first=recv, second=send), "paired") == []
    assert lines(EXCHANGE.format(first="isend(tensor, dst=peer)", second=recv), "paired") == []


def test_the_gradient_of_an_autograd_function_hides_no_backward_pass():
    assert lines(EXIT.format(decorator="@staticmethod"), "exit") == [14]
