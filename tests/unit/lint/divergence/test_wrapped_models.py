"""Uses of a wrapped model that its wrapper does not cover."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import deepspeed, torch
from accelerate import Accelerator
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.distributed.fsdp import %s
class Net(torch.nn.Module):
    def forward(self, x):
        return x
    def loss(self, x):
        return self(x).mean()
"""
FOUND = {
    "the norm of an FSDP model's shards": """
def train(batches):
    model = FSDP(Net())
    for x in batches:
        model(x).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
    "an optimizer that gets the parameters before FSDP": """
def build(lr):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    return FSDP(model), optimizer
""",
    "a method of the model that DDP wraps": """
def train(batches):
    model = DDP(Net())
    for x in batches:
        model.module.loss(x).backward()
""",
    "a scheduler on one rank": """
def train(batches):
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    if dist.get_rank() == 0:
        print("epoch")
        scheduler.step()
""",
    "a generation with the shards of ZeRO-3": """
def rollout(texts):
    engine, *_ = deepspeed.initialize(model=Net(), config={"zero_optimization": {"stage": 3}})
    return engine.module.generate(texts)
""",
}
FOUND |= {
    "the norm of a list of shards": """
class Engine:
    def __init__(self):
        self.model = FSDP(Net())
        self.params = [p for p in self.model.parameters() if p.requires_grad]
    def step(self):
        torch.nn.utils.clip_grad_norm_(self.params, 1.0)
""",
    "a part added after wrapping": """
def build(classes):
    model = DDP(Net())
    model.module.head = torch.nn.Linear(4, classes).cuda()
    return model
""",
    "parameters that thaw after wrapping": """
class Tuner:
    def __init__(self):
        self.model = DDP(Net())
    def thaw(self):
        for p in self.model.module.layer.parameters():
            p.requires_grad = True
""",
    "a loss of the unwrapped model": """
def train(batches):
    accelerator = Accelerator()
    model, optimizer = accelerator.prepare(Net(), torch.optim.SGD([torch.ones(2)], lr=0.1))
    for x in batches:
        loss = accelerator.unwrap_model(model).loss(x)
        accelerator.backward(loss)
""",
}
SILENT = {
    "a part added before wrapping": """
def build(classes):
    model = DDP(Net())
    model.module.head = torch.nn.Linear(4, classes).cuda()
    model = DDP(model.module)
    model.module.epoch = 3
    return model
""",
    "the norm that FSDP computes": """
def train(batches):
    model = FSDP(Net())
    for x in batches:
        model(x).mean().backward()
        model.clip_grad_norm_(1.0)
""",
    "the norm of a DDP model": """
def train(batches):
    model = DDP(Net())
    for x in batches:
        model(x).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
    "an optimizer that gets the parameters after FSDP": """
def build(lr):
    model = FSDP(Net())
    return model, torch.optim.AdamW(model.parameters(), lr=lr)
""",
    "a forward of the wrapper": """
def train(batches):
    model = DDP(Net())
    for x in batches:
        model(x).mean().backward()
    return model.module.loss(x)
""",
    "a model that one rank trains alone": """
def probe(batches, features):
    head = Net()
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    if dist.get_rank() == 0:
        head(features).mean().backward()
        optimizer.step()
""",
    "a generation that all ranks end together": """
def rollout(texts):
    engine, *_ = deepspeed.initialize(model=Net(), config={"zero_optimization": {"stage": 3}})
    return engine.module.generate(texts, synced_gpus=True)
""",
    "a generation with the shards of ZeRO-2": """
def rollout(texts):
    engine, *_ = deepspeed.initialize(model=Net(), config={"zero_optimization": {"stage": 2}})
    return engine.module.generate(texts)
""",
}


def found(text, imported="MixedPrecision"):
    program = program_from_sources({"main": ("main.py", HEAD % imported + text)})
    kinds = ("habit-state", "habit-loop", "bare")
    return [each for each in program.analyze() if each.kind in kinds]


@pytest.mark.parametrize("text", FOUND.values(), ids=FOUND)
def test_what_the_wrapper_does_not_cover_is_found(text):
    assert len(found(text)) == 1


@pytest.mark.parametrize("text", SILENT.values(), ids=SILENT)
def test_correct_uses_are_silent(text):
    assert found(text) == []


def test_the_tensors_of_fsdp2_compute_the_norm_of_all_shards():
    assert found(FOUND["the norm of an FSDP model's shards"], imported="fully_shard") == []


SYNCHRONIZED = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

class Net(torch.nn.Module):
    def forward(self, x):
        return x

def main(batches, x):
    inner = {convert}(Net()).cuda()
    model = DDP(inner)
    model.train()
    for batch in batches:
        model(batch).mean().backward()
    {mode}
    if dist.get_rank() == 0:
        print({model}(x).mean())
"""
CONVERT = "torch.nn.SyncBatchNorm.convert_sync_batchnorm"


@pytest.mark.parametrize("model", ["inner", "model.module"])
@pytest.mark.parametrize(
    ("convert", "mode", "count"),
    [
        (CONVERT, "pass", 1),
        (CONVERT, "model.eval()", 0),
        (CONVERT, "inner.eval()", 0),
        ("torch.compile", "pass", 0),
    ],
)
def test_a_forward_with_the_statistics_of_all_ranks(model, convert, mode, count):
    text = SYNCHRONIZED.format(convert=convert, mode=mode, model=model)
    found = program_from_sources({"train": ("train.py", text)}).analyze()
    assert len([each for each in found if each.kind == "branch"]) == count


UNWRAPPED = """
import torch
from accelerate import Accelerator
from torch.nn.parallel import DistributedDataParallel as DDP
from models import load

class Trainer:
    def __init__(self):
        self.model = DDP(load())
    def inner(self):
        if hasattr(self.model, "module"):
            return self.model.module
        return self.model
    def train(self, batches):
        for batch in batches:
            loss = {loss}
            loss.backward()

def tune(batches):
    accelerator = Accelerator()
    model = accelerator.prepare(load())
    {unwrap}
    for batch in batches:
        accelerator.backward(model(batch).mean())
"""


@pytest.mark.parametrize(
    ("loss", "count"),
    [("self.inner().compute_loss(batch)", 1), ("self.model(batch).mean()", 0)],
)
def test_the_inner_model_of_a_helper(loss, count):
    text = UNWRAPPED.partition("def tune")[0].format(loss=loss)
    found = program_from_sources({"train": ("train.py", text)}).analyze()
    assert len([each for each in found if each.kind == "bare"]) == count


@pytest.mark.parametrize(
    ("unwrap", "count"),
    [
        ("model = accelerator.unwrap_model(model)", 1),
        ("inner = accelerator.unwrap_model(model)", 0),
    ],
)
def test_a_prepared_model_that_is_unwrapped_before_training(unwrap, count):
    head, _, tune = UNWRAPPED.partition("class Trainer")
    text = head + "def tune" + tune.partition("def tune")[2].format(unwrap=unwrap)
    found = program_from_sources({"train": ("train.py", text)}).analyze()
    assert len([each for each in found if each.kind == "bare"]) == count
