"""Generates torch.distributed checkpoints; run as a module with FOLDER KIND [options].

Under torchrun. FOLDER gets ``saved``, and ``truth.pt`` with what must come out of it. KINDS are the
functions below; ``--untied``, ``--trained`` (nothing is frozen) and ``--bfloat16`` change the
model.
"""

import contextlib
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor

from tests.golden.checkpoints.making import leave
from tests.golden.checkpoints.model import STEPS, Block, loss_of, model, optimizer_of


def fsdp2(module, _options):
    """Apply fully_shard over all ranks, per layer."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in module.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def hsdp2(module, _options):
    """Apply fully_shard over pairs of ranks; the pairs are replicas."""
    mesh = init_device_mesh(
        "cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("copies", "shards")
    )
    for block in module.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def ddp(module, _options):
    """Replicate the model on every rank."""
    return torch.nn.parallel.DistributedDataParallel(module)


def fsdp1(module, options):
    """Apply FullyShardedDataParallel per layer; ``local`` state has no parameter names."""
    return FullyShardedDataParallel(
        module,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        use_orig_params="--flat" not in options,
        device_id=torch.device("cpu"),
    )


# ---- ways of saving: (what wraps the model, what writes it)


def nested(saved, module, optimizer):
    """Return what get_state_dict returns, as users save it."""
    dcp.save(
        {
            "model": get_model_state_dict(module),
            "optimizer": get_optimizer_state_dict(module, optimizer),
            "step": STEPS,
            "epoch": torch.tensor(2),
        },
        checkpoint_id=saved,
    )


def flattened(saved, module, optimizer):
    """Return the optimizer state as in torchtitan: one level of keys."""
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    state = get_optimizer_state_dict(module, optimizer, options=options)
    dcp.save(
        {**get_model_state_dict(module), "optimizer": state, "train_state": {"step": STEPS}},
        checkpoint_id=saved,
    )


def raw(saved, module, optimizer):
    """Return plain state_dicts: wrapper names, optimizer by number."""
    dcp.save({"model": module.state_dict(), "optim": optimizer.state_dict()}, checkpoint_id=saved)


def hugging_face(saved, module, _optimizer):
    """Write safetensors shards as torch does for Hugging Face."""
    writer = dcp.HuggingFaceStorageWriter(path=str(saved), save_distributed=True)
    dcp.save(get_model_state_dict(module), storage_writer=writer)


def holdfast(saved, module, optimizer):
    """Write a holdfast checkpoint."""
    from holdfast import Checkpoint

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    scheduler.last_epoch = STEPS
    kept = Checkpoint(
        saved, model=module, optimizer=optimizer, scheduler=scheduler, config={"width": 20}
    )
    kept.save(STEPS, values={"loss": 1.5}, asynchronous=False)


def per_rank(saved, module, optimizer):
    """Write one torch.save file per rank with what it holds."""
    state = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "step": STEPS}
    torch.save(state, saved / f"rank_{dist.get_rank()}.pt")


@contextlib.contextmanager
def of_type(module, kind):
    """Set FSDP1's state_dict type."""
    with warnings.catch_warnings(), FullyShardedDataParallel.state_dict_type(module, kind):
        warnings.simplefilter("ignore")
        yield


def sharded_per_rank(saved, module, optimizer):
    """Write FSDP1's sharded state, one torch.save file per rank."""
    with of_type(module, StateDictType.SHARDED_STATE_DICT):
        state = {
            "model": module.state_dict(),
            "optimizer": FullyShardedDataParallel.optim_state_dict(module, optimizer),
            "step": STEPS,
        }
    torch.save(state, saved / f"rank_{dist.get_rank()}.pt")


def sharded(saved, module, optimizer):
    """Write FSDP1's sharded state as DCP."""
    with of_type(module, StateDictType.SHARDED_STATE_DICT):
        state = {
            "model": module.state_dict(),
            "optimizer": FullyShardedDataParallel.optim_state_dict(module, optimizer),
        }
    dcp.save(state, checkpoint_id=saved)


def local(saved, module, optimizer):
    """Write FSDP1's flat parameters, one torch.save file per rank."""
    with of_type(module, StateDictType.LOCAL_STATE_DICT):
        state = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "step": STEPS}
    torch.save(state, saved / f"rank_{dist.get_rank()}.pt")


def full(saved, module, optimizer):
    """Write FSDP1's full state, one torch.save file of rank 0."""
    weights, states = full_state(module, optimizer)
    with of_type(module, StateDictType.FULL_STATE_DICT):
        groups = FullyShardedDataParallel.optim_state_dict(module, optimizer)["param_groups"]
    if dist.get_rank() == 0:
        optimizer = {"state": states, "param_groups": groups}
        torch.save({"model": weights, "optimizer": optimizer, "step": STEPS}, saved / "model.pt")


def full_state(module, optimizer):
    """Return the full state of FSDP1, with optimizer state from its shards.

    In FSDP1's own full state on the CPU, exp_avg has the values of exp_avg_sq (torch 2.13), because
    both are views of one buffer.
    """
    with of_type(module, StateDictType.FULL_STATE_DICT):
        weights = {name: each.clone() for name, each in module.state_dict().items()}
    with of_type(module, StateDictType.SHARDED_STATE_DICT):
        states = FullyShardedDataParallel.optim_state_dict(module, optimizer)["state"]
    return weights, {
        name: {key: whole(v) for key, v in each.items()} for name, each in states.items()
    }


def megatron(saved, module, optimizer):
    """Write Megatron's ``torch_dist`` format: DCP, ``common.pt``, ``metadata.json``.

    Assembled without Megatron-LM; dist_checkpointing/strategies/torch.py writes such keys.
    """
    state = get_optimizer_state_dict(module, optimizer)["state"]
    tensors = dict(get_model_state_dict(module))
    for name, values in state.items():
        tensors |= {
            f"optimizer.state.{key}.{name}": each for key, each in values.items() if key != "step"
        }
    dcp.save({**tensors, "blocks.0.mix._extra_state/shard_0_1": b"none"}, checkpoint_id=saved)
    if dist.get_rank() == 0:
        common = {
            "iteration": STEPS,
            "checkpoint_version": 3.0,
            "args": None,
            "optimizer": {"param_groups": [{"lr": 1e-2, "betas": (0.9, 0.999), "step": STEPS}]},
        }
        torch.save(common, saved / "common.pt")
        (saved / "metadata.json").write_text(
            '{"sharded_backend": "torch_dist", "sharded_backend_version": 1}'
        )


KINDS = {
    "dcp": (fsdp2, nested),
    "dcp-flat": (fsdp2, flattened),
    "dcp-ddp": (ddp, raw),
    "dcp-hsdp": (hsdp2, nested),
    "dcp-fsdp1": (fsdp1, sharded),
    "huggingface": (fsdp2, hugging_face),
    "holdfast": (fsdp2, holdfast),
    "holdfast-ddp": (ddp, holdfast),
    "fsdp2-ranks": (fsdp2, per_rank),
    "fsdp1-sharded": (fsdp1, sharded_per_rank),
    "fsdp1-local": (fsdp1, local),
    "fsdp1-full": (fsdp1, full),
    "megatron": (fsdp2, megatron),
}


def trained(module, optimizer, steps):
    """Train; return the mean losses over ranks."""
    losses = []
    for step in steps:
        loss = loss_of(module, step, dist.get_rank(), dist.get_world_size())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().float()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses


def truth_of(module, optimizer):
    """Return full tensors of model and optimizer by plain names, in order."""
    if isinstance(module, FullyShardedDataParallel):
        return full_state(module, optimizer)
    weights = {
        name.removeprefix("module."): whole(each) for name, each in module.state_dict().items()
    }
    states = {}
    for name, parameter in module.named_parameters():
        if parameter in optimizer.state:
            states[name.removeprefix("module.")] = {
                key: whole(v) for key, v in optimizer.state[parameter].items()
            }
    return weights, states


def whole(value):
    """Return a full copy of a tensor, sharded or not."""
    if isinstance(value, ShardedTensor):
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(
            parts, [(each.metadata.shard_offsets, each.tensor) for each in value.local_shards()]
        )
        made = torch.empty(value.size(), dtype=value.dtype)
        for offsets, part in (shard for shards in parts for shard in shards):
            made[tuple(slice(at, at + n) for at, n in zip(offsets, part.shape, strict=True))] = part
        return made
    found = value.detach()
    return (found.full_tensor() if isinstance(found, DTensor) else found).clone()


def main(folder, kind, *options):
    """Train, save, and continue training."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    wrap, save = KINDS[kind]
    module = model(tied="--untied" not in options, frozen="--trained" not in options)
    if "--bfloat16" in options:
        module = module.to(torch.bfloat16)
    module = wrap(module, options)
    optimizer = optimizer_of(module)
    trained(module, optimizer, range(STEPS))
    weights, states = truth_of(module, optimizer)
    saved = Path(folder) / "saved"
    saved.mkdir(exist_ok=True)
    save(saved, module, optimizer)
    losses = trained(module, optimizer, range(STEPS, STEPS + 2))
    if dist.get_rank() == 0:
        torch.save(
            {"model": weights, "optimizer": states, "losses": losses}, Path(folder) / "truth.pt"
        )
    dist.barrier()
    dist.destroy_process_group()
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
