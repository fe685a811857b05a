import functools
import os
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from policies import Block, WorldActionModel
from settings import parse


def shard(model):
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    return FullyShardedDataParallel(
        model, auto_wrap_policy=policy, device_id=torch.cuda.current_device(), use_orig_params=True
    )


def export(model, folder):
    config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        weights = model.state_dict()
    if dist.get_rank() == 0:
        Path(folder).mkdir(parents=True, exist_ok=True)
        save_file(weights, f"{folder}/model.safetensors")
    dist.barrier()


def main():
    cfg = parse()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(cfg.seed)
    if cfg.checkpoint is not None:
        model = WorldActionModel.from_pretrained(cfg.checkpoint, cfg.device)
    else:
        model = WorldActionModel().to(cfg.device)
    model = shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    torch.manual_seed(cfg.seed + 1 + dist.get_rank())
    for step in range(1, cfg.steps + 1):
        features = torch.randn(cfg.batch_size, 256, 4096, device=cfg.device)
        actions = torch.randn(cfg.batch_size, 256, 14, device=cfg.device)
        loss = model(features, actions)
        optimizer.zero_grad()
        loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        if step % 2_000 == 0:
            export(model, f"outputs/{step:06d}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
