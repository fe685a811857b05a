"""FSDP is read from training scripts for a migration, without running them."""

import pytest

from holdfast.core.errors import InvalidValue
from holdfast.plan.generate.fsdp_script import read_script
from holdfast.plan.request.config_files import migrate_config

FSDP1 = """
import functools, torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp import CPUOffload
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from model import Block, build
policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
bf16 = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
model = FSDP(build(), auto_wrap_policy=policy, mixed_precision=bf16,
             sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, cpu_offload=CPUOffload(True))
optimizer = torch.optim.AdamW(model.parameters(), 3e-4, betas=(0.9, 0.95))
model.clip_grad_norm_(1.0)
"""
FSDP2 = """
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
def main(args):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    apply_activation_checkpointing(model)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model.head, mp_policy=policy)
    fully_shard(model, mp_policy=policy, reshard_after_forward=False)
    model = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
"""


def test_fsdp1_with_its_policies_and_optimizer():
    script = read_script(FSDP1, "train.py")
    assert script.config == {
        "framework": "fsdp2",
        "fully_shard": {
            "reshard_after_forward": False,
            "param_dtype": "bfloat16",
            "reduce_dtype": "float32",
            "offload": "cpu",
        },
        "optimizer": {
            "name": "AdamW",
            "lr": 3e-4,
            "betas": (0.9, 0.95),
            "eps": 1e-8,
            "weight_decay": 0.01,
        },
        "clip_grad_norm": 1.0,
    }
    assert (script.wrapped, script.unread) == (("Block",), ())


def test_what_a_script_computes_is_reported():
    script = read_script(FSDP2, "train.py")
    assert script.config["fully_shard"] == {
        "reshard_after_forward": True,
        "param_dtype": "bfloat16",
    }
    assert script.config["recompute"] == {"layers": "full"}
    assert (script.config["compile"], script.config["optimizer"]["momentum"]) == (True, 0.9)
    (unread,) = script.unread
    assert unread.setting == "optimizer.lr: args.lr (line 13)"
    assert unread.why == "the script computes it; 0.001 is used instead"


@pytest.mark.parametrize("to", ["deepspeed", "fsdp2", "accelerate-fsdp2", "torchtitan"])
def test_a_script_is_migrated(tmp_path, to):
    path = tmp_path / "train.py"
    path.write_text(FSDP1)
    migration = migrate_config(path, to)
    assert migration.files
    assert migration.recipe.optimizer.lr == 3e-4
    assert any("the script shards each Block" in text for text in migration.warnings)


@pytest.mark.parametrize(
    ("call", "setting"),
    [
        ("FSDP(m, sharding_strategy=ShardingStrategy.HYBRID_SHARD)", "sharding_strategy"),
        ("FSDP(m, sharding_strategy=[1])", "sharding_strategy"),
        ("FSDP(m, mixed_precision=make())", "mixed precision"),
        ("fully_shard(m, reshard_after_forward=[2], mp_policy=policies[0])", "mixed precision"),
        ("FSDP(m, auto_wrap_policy=my_policy)", "auto_wrap_policy"),
    ],
)
def test_what_is_not_understood_is_named(call, setting):
    script = read_script(
        "from torch.distributed.fsdp import *\n"
        f"from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n{call}\n",
        "train.py",
    )
    assert [each.setting.partition(":")[0] for each in script.unread] == [setting]


@pytest.mark.parametrize(
    ("text", "why"),
    [("import torch\nmodel = 3\n", "calls neither"), ("def f(:\n", "not a Python program")],
)
def test_other_scripts_are_refused(text, why):
    with pytest.raises(InvalidValue, match=why):
        read_script(text, "train.py")
