"""Trains under DeepSpeed ZeRO; saves FOLDER/checkpoint (with ``latest``), FOLDER/truth.pt.

With ``--load`` it loads a checkpoint instead of training first. truth.pt is what it then has:
{"model": {name: tensor, fp32 where trained}, "halves": {name: tensor as the model has it},
"optimizer": {name: {exp_avg, exp_avg_sq, step}}, "losses": means over all ranks of the next two
steps, "client_state": what the load gave, "step", "rates" of learning}.
"""

import argparse
import json
import os
import sys
from pathlib import Path

os.environ["PATH"] = (
    f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"  # deepspeed builds with ninja
)
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
from deepspeed.checkpoint import ds_to_universal
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from torch import distributed

from tests.golden.checkpoints.making import leave
from tests.golden.checkpoints.model import BATCH, STEPS, loss_of, model, optimizer_of

deepspeed.ops.__compatible_ops__.pop("deepspeed_shm_comm", None)  # compiled on CPUs: minutes
CLIENT = {"epoch": 2, "note": "kept", "nested": {"seen": [1, 2.5, None]}}


def arguments():
    """Parse the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--dtype", choices=["fp32", "bf16", "fp16"], default="fp32")
    parser.add_argument(
        "--accumulate", choices=["fp32"], help="grad_accum_dtype; makes it the BF16_Optimizer"
    )
    parser.add_argument("--untied", action="store_true")
    parser.add_argument("--unfrozen", action="store_true")
    parser.add_argument(
        "--one-group", action="store_true", help="all parameters in one group of the optimizer"
    )
    parser.add_argument(
        "--scheduler", action="store_true", help="a learning rate that falls, by a LambdaLR"
    )
    parser.add_argument(
        "--offload",
        action="store_true",
        help="optimizer state (and ZeRO-3's parameters) on the CPU",
    )
    parser.add_argument(
        "--sub-group", type=int, default=1_000_000_000, help="ZeRO-3's sub_group_size, in elements"
    )
    parser.add_argument(
        "--no-frozen-saved", action="store_true", help="exclude_frozen_parameters=True"
    )
    parser.add_argument(
        "--zero",
        action="append",
        default=[],
        metavar="KEY=JSON",
        help="more of `zero_optimization`",
    )
    parser.add_argument(
        "--universal", action="store_true", help="ds_to_universal makes FOLDER/universal, too"
    )
    parser.add_argument(
        "--load",
        type=Path,
        help="load this checkpoint's folder (with `latest`) instead of training",
    )
    parser.add_argument("--load-universal", action="store_true", help="what is loaded is universal")
    parser.add_argument(
        "--clip", type=float, default=1.0, help="of gradients; 1.0 is DeepSpeed's own, 0 is none"
    )
    parser.add_argument("--tag")
    return parser.parse_args()


def config(asked):
    """Return DeepSpeed's configuration."""
    zero = {
        "stage": asked.stage,
        "sub_group_size": asked.sub_group,
        "stage3_param_persistence_threshold": 30,
    }
    if asked.offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    zero.update((key, json.loads(value)) for key, value in (each.split("=") for each in asked.zero))
    made = {
        "train_micro_batch_size_per_gpu": BATCH // distributed.get_world_size(),
        "gradient_accumulation_steps": 1,
        "gradient_clipping": asked.clip,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    if asked.accumulate:
        made["data_types"] = {"grad_accum_dtype": asked.accumulate}
    if asked.dtype == "bf16":
        made["bf16"] = {"enabled": True}
    if asked.dtype == "fp16":
        deepspeed.get_accelerator().is_fp16_supported = lambda: (
            True
        )  # it is slow on a CPU, and works
        made["fp16"] = {"enabled": True, "initial_scale_power": 8}
    if asked.load_universal:
        made["checkpoint"] = {"load_universal": True}
    return made


def engine_of(asked):
    """Return the model under DeepSpeed."""
    module = model(tied=not asked.untied, frozen=not asked.unfrozen)
    optimizer = optimizer_of(module)
    if asked.one_group:
        optimizer = torch.optim.AdamW(
            [each for each in module.parameters() if each.requires_grad], lr=1e-2
        )
    scheduler = (
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
        if asked.scheduler
        else None
    )
    return deepspeed.initialize(
        model=module, optimizer=optimizer, lr_scheduler=scheduler, config=config(asked)
    )[0]


def step_of(engine, step):
    """Run one step; return the mean loss over all ranks before it."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    loss = loss_of(engine, step, rank, ranks)
    engine.backward(loss)
    engine.step()
    mean = loss.detach().double()
    distributed.all_reduce(mean)
    return mean.item() / ranks


def whole(param):
    """Return the full parameter, gathered under ZeRO-3."""
    if not hasattr(param, "ds_id"):
        return param.detach().clone()
    with deepspeed.zero.GatheredParameters([param]):
        return param.detach().clone()


def model_of(engine):
    """Return every tensor of the state dict, in fp32 if available."""
    found = {name: each.detach().clone() for name, each in engine.module.named_buffers()}
    for name, param in engine.module.named_parameters(remove_duplicate=False):
        full = safe_get_full_fp32_param(param) if param.requires_grad else whole(param)
        found[name] = full.detach().clone()
    return found


def halves_of(engine):
    """Return the model's own parameters, in 16 bits if configured."""
    return {name: whole(param) for name, param in engine.module.named_parameters()}


def optimizer_state_of(engine):
    """Return Adam's moments by parameter name."""
    if hasattr(engine.optimizer, "_hp_optimizer_states_linked"):
        engine.optimizer._hp_optimizer_states_linked = (
            False  # DeepSpeed links the first group's alone
        )
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    steps = [
        float(each["step"]) for each in engine.optimizer.optimizer.state.values() if "step" in each
    ]
    found = {}
    for name, param in engine.module.named_parameters():
        if param.requires_grad:
            states = {
                key: safe_get_full_optimizer_state(param, key) for key in ("exp_avg", "exp_avg_sq")
            }
            found[name] = {
                key: each.detach().clone() for key, each in states.items() if each is not None
            }
            found[name]["step"] = steps[0] if steps else None
    return found


def main():
    """Train, save, and continue training."""
    asked = arguments()
    deepspeed.init_distributed("gloo")
    engine = engine_of(asked)
    client = None
    if asked.load:
        _, client = engine.load_checkpoint(str(asked.load), tag=asked.tag)
        assert client is not None, f"nothing was loaded from {asked.load}"
    else:
        for step in range(STEPS):
            step_of(engine, step)
        place = asked.folder / "checkpoint"
        engine.save_checkpoint(
            str(place),
            tag=asked.tag,
            client_state=CLIENT,
            exclude_frozen_parameters=asked.no_frozen_saved,
        )
    truth = {
        "model": model_of(engine),
        "halves": halves_of(engine),
        "optimizer": optimizer_state_of(engine),
        "client_state": client and {key: client.get(key) for key in CLIENT},
        "step": engine.global_steps,
        "rates": [each["lr"] for each in engine.optimizer.param_groups],
        "losses": [step_of(engine, step) for step in (STEPS, STEPS + 1)],
    }
    if distributed.get_rank() == 0:
        asked.folder.mkdir(parents=True, exist_ok=True)
        torch.save(truth, asked.folder / "truth.pt")
        if asked.universal:
            universal(asked)
    distributed.barrier()
    distributed.destroy_process_group()
    leave()


def universal(asked):
    """Create FOLDER/universal with ds_to_universal."""
    tag = (asked.folder / "checkpoint" / "latest").read_text().strip()
    target = asked.folder / "universal"
    ds_to_universal.main(
        argparse.Namespace(
            input_folder=str(asked.folder / "checkpoint" / tag),
            output_folder=str(target / tag),
            strict=True,
            num_extract_workers=1,
            num_merge_workers=1,
            keep_temp_folder=False,
            inject_missing_state=True,
        )
    )
    (target / "latest").write_text(tag)


if __name__ == "__main__":
    main()
