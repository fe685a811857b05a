"""Calls of training frameworks that need all ranks, and what their hooks get."""

import pytest

from holdfast.lint.rules.catalogue import RULES
from tests.unit.lint.programs import program_from_sources

HOOK = """
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

class Samples(TrainerCallback):
    def complete(self, model):
        return model.generate(self.prompts, max_new_tokens=8)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        {body}

def main(model):
    args = TrainingArguments("out", {setting})
    Trainer(model=model, args=args, callbacks=[Samples()]).train()
"""
GENERATES = "if state.is_world_process_zero:\n            print(self.complete(model))"
LEAVES = (
    "if not state.is_world_process_zero:\n            return\n        print(self.complete(model))"
)
FORWARD = "if state.is_world_process_zero:\n            print(model(self.batch))"
BY_ALL = (
    "text = self.complete(model)\n        if state.is_world_process_zero:\n            print(text)"
)
ZERO_3 = 'deepspeed={"zero_optimization": {"stage": 3}}'


def rules_of(text: str, module: str = "train") -> list[tuple[str, str, int | None]]:
    found = program_from_sources({module: (f"{module}.py", text)}).analyze()
    first = {}
    for each in found:
        for rule in RULES:
            if each.kind in rule.kinds and rule.matches(each) and each.kind != "undecided":
                level = rule.finding(each).level.value
                first.setdefault(each.location, (rule.name, level, each.location.line))
    return list(first.values())


@pytest.mark.parametrize("setting", [ZERO_3, 'fsdp="full_shard auto_wrap"'])
@pytest.mark.parametrize(("body", "line"), [(GENERATES, 11), (LEAVES, 11), (FORWARD, 11)])
def test_a_hook_of_transformers_gets_a_model_that_may_be_sharded(setting, body, line):
    found = rules_of(HOOK.format(body=body, setting=setting))
    assert [(level, at) for _, level, at in found] == [("warning", line)]


@pytest.mark.parametrize("access", ['kwargs["model"]', 'kwargs.get("model")'])
@pytest.mark.parametrize(("setting", "count"), [(ZERO_3, 1), ("bf16=True", 0)])
def test_a_hook_takes_the_model_from_its_keywords(access, setting, count):
    text = HOOK.format(body=GENERATES.replace("(model)", f"({access})"), setting=setting)
    assert len(rules_of(text.replace("model=None, ", ""))) == count


SELF_CALL = """
import lightning as L
import torch

class Net(L.LightningModule):
    def forward(self, x):
        return x

    def on_validation_epoch_end(self):
        if {test}:
            images = self(torch.ones(1))

L.Trainer(strategy="{strategy}", devices=8).fit(Net())
"""


@pytest.mark.parametrize(
    ("test", "strategy", "count"),
    [
        ("self.trainer.is_global_zero", "fsdp", 1),
        ("self.trainer.is_global_zero", "ddp", 0),
        ("self.current_epoch % 5 == 0", "fsdp", 0),
    ],
)
def test_a_module_of_lightning_that_may_be_sharded_is_called_by_all_ranks(test, strategy, count):
    assert len(rules_of(SELF_CALL.format(test=test, strategy=strategy))) == count


@pytest.mark.parametrize(
    ("body", "setting"), [(BY_ALL, ZERO_3), (GENERATES, "bf16=True"), (FORWARD, "bf16=True")]
)
def test_a_hook_with_a_whole_model_or_all_ranks_is_none(body, setting):
    assert rules_of(HOOK.format(body=body, setting=setting)) == []


LIGHTNING_HOOK = """
import lightning as L
from lightning.pytorch.utilities import rank_zero_only

class Publish(L.Callback):
{body}
"""


@pytest.mark.parametrize(
    ("body", "level", "line"),
    [
        (
            (
                "    @rank_zero_only\n    def on_train_end(self, trainer, pl_module):\n"
                "        trainer.save_checkpoint('final.ckpt')"
            ),
            "error",
            8,
        ),
        (
            (
                "    def on_validation_end(self, trainer, pl_module):\n"
                "        if not trainer.is_global_zero:\n            return\n"
                "        self.write(pl_module.all_gather(self.features))"
            ),
            "error",
            8,
        ),
    ],
)
def test_a_hook_of_lightning_gets_the_trainer_and_the_module(body, level, line):
    found = rules_of(LIGHTNING_HOOK.format(body=body))
    assert [(each, at) for _, each, at in found] == [(level, line)]


def test_a_hook_of_lightning_saves_with_all_ranks():
    body = (
        "    def on_train_end(self, trainer, pl_module):\n"
        "        trainer.save_checkpoint('final.ckpt')\n"
        "        if trainer.is_global_zero:\n            print('saved')"
    )
    assert rules_of(LIGHTNING_HOOK.format(body=body)) == []


GUARDED = {
    "push_to_hub": (
        "from transformers import Trainer\n",
        (
            "trainer = Trainer(model)\n    if trainer.is_world_process_zero():\n        "
            "trainer.push_to_hub()"
        ),
    ),
    "PPO step": (
        "from trl import PPOTrainer\n",
        (
            "trainer = PPOTrainer(model)\n    if trainer.accelerator.is_main_process:\n        "
            "trainer.step(model, model, model)"
        ),
    ),
    "clip": (
        "from accelerate import Accelerator\n",
        (
            "accelerator = Accelerator()\n    if accelerator.is_main_process:\n        "
            "accelerator.clip_grad_norm_(model.parameters(), 1.0)"
        ),
    ),
    "ignite": (
        "import ignite.distributed as idist\n",
        "total = model.mean()\n    if idist.get_rank() == 0:\n        idist.all_reduce(total)",
    ),
    "PPO statistics": (
        "from trl import PPOTrainer\n",
        (
            "trainer = PPOTrainer(model)\n    if trainer.accelerator.is_main_process:\n        "
            "trainer.log_stats({}, {}, model)"
        ),
    ),
    "an experimental trainer": (
        "from trl.experimental.gkd import GKDTrainer\n",
        (
            "trainer = GKDTrainer(model)\n    if trainer.is_world_process_zero():\n        "
            "trainer.evaluate()"
        ),
    ),
    "a metric of ignite": (
        "import ignite.distributed as idist\nfrom ignite.metrics import Accuracy\n",
        "metric = Accuracy()\n    if idist.get_rank() == 0:\n        print(metric.compute())",
    ),
    "mmengine": (
        "from mmengine.dist import collect_results, is_main_process\n",
        "if is_main_process():\n        collect_results(model, 8)",
    ),
    "a metric on a device": (
        "import torchmetrics\nimport torch.distributed as dist\n",
        (
            "metric = torchmetrics.MeanMetric().cuda()\n    if dist.get_rank() == 0:\n        "
            "print(metric.compute())"
        ),
    ),
    "FSDP's module": (
        (
            "import torch.distributed as dist\nfrom torch.distributed.fsdp import "
            "FullyShardedDataParallel as FSDP\n"
        ),
        "wrapped = FSDP(model)\n    if dist.get_rank() == 0:\n        print(wrapped.module(1))",
    ),
    "the engine's module under ZeRO-3": (
        (
            "import deepspeed\nimport torch.distributed as dist\nCONFIG = {'zero_optimization': "
            "{'stage': 3}}\n"
        ),
        (
            "engine, *_ = deepspeed.initialize(model=model, config=CONFIG)\n"
            "    if dist.get_rank() == 0:\n        print(engine.module(1))"
        ),
    ),
    "an unwrapped model under ZeRO-3": (
        "from accelerate import Accelerator, DeepSpeedPlugin\n",
        (
            "accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=3))\n"
            "    model = accelerator.prepare(model)\n    if accelerator.is_main_process:\n        "
            "print(accelerator.unwrap_model(model).generate(1))"
        ),
    ),
}


@pytest.mark.parametrize("case", GUARDED)
def test_a_call_that_needs_all_ranks_is_found_under_a_rank_test(case):
    imports, body = GUARDED[case]
    assert rules_of(f"{imports}def main(model):\n    {body}\n") != []


@pytest.mark.parametrize("case", GUARDED)
def test_the_same_call_by_all_ranks_is_none(case):
    imports, body = GUARDED[case]
    lines = [line for line in body.splitlines() if not line.strip().startswith("if ")]
    text = "\n".join(f"    {line.strip()}" for line in lines)
    assert rules_of(f"{imports}def main(model):\n{text}\n") == []


CHECKPOINT_HOOK = """
import pytorch_lightning as pl

class Checkpoint(pl.callbacks.{base}):
    def on_validation_end(self, trainer, pl_module):
        if trainer.global_rank != 0:
            return
        super().on_validation_end(trainer, pl_module)
"""


@pytest.mark.parametrize(
    ("base", "levels"),
    [("ModelCheckpoint", ["warning"]), ("EarlyStopping", ["error"]), ("ProgressBar", [])],
)
def test_an_inherited_hook_of_lightning_may_need_all_ranks(base, levels):
    assert [level for _, level, _ in rules_of(CHECKPOINT_HOOK.format(base=base))] == levels


WHOLE = """
from accelerate import Accelerator, FullyShardedDataParallelPlugin

def preview(accelerator, model, x):
    if {test}:
        return
    print(accelerator.unwrap_model(model)(x))

def main(net, x, use_fsdp):
    plugin = FullyShardedDataParallelPlugin() if use_fsdp else None
    accelerator = Accelerator(fsdp_plugin=plugin)
    preview(accelerator, accelerator.prepare(net), x)
"""


@pytest.mark.parametrize(
    ("test", "count"),
    [
        ("not accelerator.is_main_process", 1),
        ("not accelerator.is_main_process or accelerator.distributed_type == 'FSDP'", 0),
        ("not (accelerator.is_main_process and accelerator.distributed_type != 'FSDP')", 0),
        ("not accelerator.is_main_process or accelerator.distributed_type != 'FSDP'", 1),
    ],
)
def test_a_model_that_the_same_test_says_is_whole_needs_no_other_rank(test, count):
    assert len(rules_of(WHOLE.format(test=test))) == count


SEVERAL = """
from accelerate import Accelerator

class Loop:
    def __init__(self, model, discriminators):
        self.accelerator = Accelerator()
        self.model = self.accelerator.prepare(model)
        self.models = discriminators
        for key in self.models:
            {prepared}

    def step(self, batch):
        return {called}(batch)

    def save(self):
        if self.accelerator.is_main_process:
            self.accelerator.save_state("ckpt")
"""


@pytest.mark.parametrize(
    ("prepared", "called", "count"),
    [
        ("print(key)", "self.model", 1),
        ("print(key)", "self.model.module.state_dict", 1),
        ("self.models[key] = self.accelerator.prepare(self.models[key])", "self.model", 1),
        ("self.models[key] = self.accelerator.prepare(self.models[key])", "self.models['d']", 0),
        ("self.models[key] = self.accelerator.prepare_model(self.models[key])", "self.model", 0),
        ("print(key)", "self.model.module.encode", 0),
    ],
)
def test_models_that_are_whole_on_each_rank_are_saved_by_one(prepared, called, count):
    """Accelerate shards no model that is one of several, or whose inner module is called."""
    assert len(rules_of(SEVERAL.format(prepared=prepared, called=called))) == count


SAVES = """
from accelerate import Accelerator
from accelerate.utils import DistributedType

def main(args):
    accelerator = Accelerator()
    if {test}:
        accelerator.save_state("ckpt")
"""


@pytest.mark.parametrize(
    ("test", "count"),
    [
        ("accelerator.is_main_process", 1),
        ("accelerator.is_main_process or accelerator.distributed_type == DistributedType.FSDP", 0),
        ("accelerator.is_main_process and args.fsdp", 1),
        ("accelerator.is_main_process and not args.fsdp", 0),
    ],
)
def test_a_model_that_is_whole_where_ranks_skip_the_call_needs_no_other_rank(test, count):
    assert len(rules_of(SAVES.format(test=test))) == count


FIRST = """
import torch
from accelerate import Accelerator

def width(accelerator, rows):
    return accelerator.gather(torch.tensor([len(rows)])).max()

def load(accelerator, path):
    with accelerator.{context}():
        rows = open(path).read()
        {inside}
    {after}
    return rows

load(Accelerator(), "rows.txt")
"""


@pytest.mark.parametrize("context", ["main_process_first", "local_main_process_first"])
@pytest.mark.parametrize(
    ("inside", "after", "levels"),
    [
        ("size = width(accelerator, rows)", "", ["error"]),
        ("size = accelerator.gather(torch.tensor([1]))", "", ["error"]),
        ("", "size = width(accelerator, rows)", []),
        ("accelerator.wait_for_everyone()", "", []),
    ],
)
def test_a_collective_in_a_block_of_the_first_process_is_found(context, inside, after, levels):
    text = FIRST.format(context=context, inside=inside, after=after)
    assert [level for _, level, _ in rules_of(text)] == levels


def test_a_context_of_the_program_is_followed_instead():
    text = FIRST.format(context="main_process_first", inside="width(accelerator, rows)", after="")
    assert rules_of(text + "\ndef main_process_first():\n    pass\n") == []


STEPS = """
import torch
import lightning as L

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        loss = self.net(batch).mean()
        if {test}:
            self.manual_backward(loss)
"""


@pytest.mark.parametrize(
    ("test", "count"), [("batch.sum() > 0", 1), ("batch_idx % 2", 0), ("self.trainer.training", 0)]
)
def test_the_batch_of_a_step_is_the_ranks_own(test, count):
    assert len(rules_of(STEPS.format(test=test))) == count


WRAPPED = """
import os
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from transformers import AutoModelForCausalLM

def main(net, batches, loader):
    rank = dist.get_rank()
    local_rank = int(os.environ.get("LOCAL_RANK", -1))
{body}
"""
FOUND = {
    "DDP on one rank": "    if rank == 0:\n        teacher = DDP(net)",
    "clipping of DTensors by a local test": (
        "    fully_shard(net)\n    for x in loader:\n        loss = net(x).mean()\n"
        "        if loss.item() > 1:\n"
        "            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)"
    ),
    "generation with tensor parallelism": (
        "    model = AutoModelForCausalLM.from_pretrained('m', tp_plan='auto')\n"
        "    if rank == 0:\n        print(model.generate(batches))"
    ),
}
NONE = {
    "DDP of several processes": "    if local_rank != -1:\n        net = DDP(net)",
    "DDP on all ranks": "    net = DDP(net)\n    if rank == 0:\n        print(net)",
    "DDP in a group": (
        "    group = dist.new_group([0, 1])\n    if rank < 2:\n"
        "        net = DDP(net, process_group=group)"
    ),
    "clipping of DTensors": (
        "    fully_shard(net)\n    for x in loader:\n        net(x).mean().backward()\n"
        "        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)"
    ),
    "generation without tensor parallelism": (
        "    model = AutoModelForCausalLM.from_pretrained('m', tp_plan=None)\n"
        "    if rank == 0:\n        print(model.generate(batches))"
    ),
}


@pytest.mark.parametrize("case", FOUND)
def test_what_wrappers_and_shards_communicate_is_found(case):
    assert len(rules_of(WRAPPED.format(body=FOUND[case]))) == 1


@pytest.mark.parametrize("case", NONE)
def test_what_all_ranks_of_a_wrapper_do_is_none(case):
    assert rules_of(WRAPPED.format(body=NONE[case])) == []


IGNITE = """
import ignite.distributed as idist
from ignite.engine import Engine, Events, create_supervised_evaluator

def training(local_rank, model, step, val):
    trainer = Engine(step)
    evaluator = create_supervised_evaluator(model{metrics})
    {register}
    def validate(engine):
        {body}
    {later}
"""
ON, METRICS = "@trainer.on(Events.EPOCH_COMPLETED)", ", metrics={'accuracy': 1}"
ON_ONE = "if idist.get_rank() == 0:\n            evaluator.run(val)"
ADD = "trainer.add_event_handler(Events.EPOCH_COMPLETED, validate)"


@pytest.mark.parametrize(
    ("metrics", "register", "body", "later", "count"),
    [
        (METRICS, ON, ON_ONE, "", 1),
        (METRICS, "", "evaluator.run(val)", f"if idist.get_rank() == 0:\n        {ADD}", 1),
        (METRICS, "", "evaluator.run(val)", ADD, 0),
        (METRICS, ON, "evaluator.run(val)", "", 0),
        ("", ON, ON_ONE, "", 0),
    ],
)
def test_a_handler_of_ignite_runs_where_it_is_registered(metrics, register, body, later, count):
    text = IGNITE.format(metrics=metrics, register=register, body=body, later=later)
    assert len(rules_of(text)) == count


HANDLER = """
import torch.distributed as dist

def main(hooks, value):
    def report(step):
        if dist.get_rank() == 0:
            dist.all_reduce(value)
    {use}
"""


@pytest.mark.parametrize("use", ["hooks.register(report)", "hooks.report = report", "pass"])
def test_an_inner_function_that_only_unknown_code_may_call_is_run(use):
    assert [line for _, _, line in rules_of(HANDLER.format(use=use))] == [7]


RUN = """
import wandb
import torch.distributed as dist

def log(loss):
    if {test}:
        dist.all_reduce(loss)
        wandb.log({{"loss": loss}})

def main(losses, args):
    if {start}:
        wandb.init(project="p")
    for loss in losses:
        log(loss)
"""


@pytest.mark.parametrize("test", ["wandb.run is not None", "wandb.run"])
@pytest.mark.parametrize(("start", "count"), [("dist.get_rank() == 0", 1), ("args.wandb", 0)])
def test_a_run_is_none_on_the_ranks_that_did_not_create_it(test, start, count):
    assert len(rules_of(RUN.format(test=test, start=start))) == count


FOLDER = """
import time
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

def save(state, step):
    folder = [f"ckpt/{{int(time.time())}}"]
    {agree}
    dcp.save(state, checkpoint_id={folder})
"""


@pytest.mark.parametrize(
    ("agree", "folder", "count"),
    [
        ("pass", "folder[0]", 1),
        ("pass", "f'ckpt/{step}'", 0),
        ("dist.broadcast_object_list(folder)", "folder[0]", 0),
    ],
)
def test_a_sharded_checkpoint_has_one_folder(agree, folder, count):
    found = rules_of(FOLDER.format(agree=agree, folder=folder))
    assert len([line for _, _, line in found if line == 9]) == count


HELD_MODEL = """
from transformers import Trainer, TrainerCallback, TrainingArguments
import torch

class Samples(TrainerCallback):
    def __init__(self, trainer, batch):
        self.trainer, self.batch = trainer, batch

    def on_log(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            print(self.trainer.{attribute}(**self.batch))

def main(model, batch):
    trainer = Trainer(model, TrainingArguments("out", {setting}))
    trainer.add_callback(Samples(trainer, batch))
    trainer.train()
    if trainer.is_world_process_zero():
        torch.save(trainer.{saved}.state_dict(), "model.pt")
"""


@pytest.mark.parametrize(
    ("attribute", "saved", "setting", "lines"),
    [
        ("model", "model", 'fsdp="full_shard"', [11, 18]),
        ("model_wrapped", "model_wrapped", 'fsdp="full_shard"', [11, 18]),
        ("tokenizer", "tokenizer", 'fsdp="full_shard"', []),
        ("model", "model", "bf16=True", []),
    ],
)
def test_the_model_that_a_trainer_holds(attribute, saved, setting, lines):
    text = HELD_MODEL.format(attribute=attribute, saved=saved, setting=setting)
    assert sorted({line for _, _, line in rules_of(text)}) == lines


MMENGINE_HOOK = """
from mmengine.dist import master_only
from mmengine.hooks import Hook

class Evaluate(Hook):
    {decorator}
    def after_train_epoch(self, runner):
        {call}
"""


@pytest.mark.parametrize(
    ("decorator", "call", "count"),
    [
        ("@master_only", "runner.val_loop.run()", 1),
        ("@master_only", "runner.val()", 1),
        ("@master_only", "runner.save_checkpoint('out', 'last.pth')", 0),
        ("", "runner.val_loop.run()", 0),
    ],
)
def test_a_hook_of_mmengine_on_one_rank(decorator, call, count):
    assert len(rules_of(MMENGINE_HOOK.format(decorator=decorator, call=call))) == count


LOSS = """
import torch
import torch.distributed as dist
from transformers import Trainer

class Weighted({base}):
    def compute_loss(self, model, inputs, return_outputs=False):
        out = model(**inputs)
        count = (inputs["labels"] != -100).sum()
        if {test}:
            dist.all_reduce(count)
        return out.loss / count
"""


@pytest.mark.parametrize(
    ("base", "test", "count"),
    [
        ("Trainer", "count > 0", 1),
        ("Trainer", "inputs['labels'][0].sum() > 0", 1),
        ("Trainer", "inputs['labels'].shape[0] > 1", 0),
        ("Trainer", "self.args.weighted", 0),
    ],
)
def test_the_inputs_of_a_loss_are_the_ranks_own_batch(base, test, count):
    assert len(rules_of(LOSS.format(base=base, test=test))) == count


STEP = """
import torch
from transformers import Trainer

class Tolerant(Trainer):
    def training_step(self, model, inputs):
        try:
            return {step}(model, inputs)
        except RuntimeError:
            {handler}
"""


@pytest.mark.parametrize(
    ("step", "handler", "count"),
    [
        ("super().training_step", "return torch.tensor(0.0)", 1),
        ("super().training_step", "raise", 0),
        ("self.measure", "return torch.tensor(0.0)", 0),
    ],
)
def test_a_step_whose_failure_one_rank_swallows(step, handler, count):
    assert len(rules_of(STEP.format(step=step, handler=handler))) == count
