import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from config import TrainConfig
from trainer import Trainer, latest_checkpoint

log = logging.getLogger("train")


def build_model(cfg):
    torch.manual_seed(cfg.seed)
    layers = [nn.Sequential(nn.Linear(cfg.dim, cfg.dim), nn.GELU()) for _ in range(cfg.depth)]
    model = nn.Sequential(*layers).cuda()
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def main(cfg):
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl")
    logging.basicConfig(level=logging.INFO)
    model = build_model(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(cfg.seed + 1 + dist.get_rank())
    trainer = Trainer(cfg, model, optimizer)

    if dist.get_rank() == 0:
        log.info("Configuration:")
        log.info(cfg)
        log.info("parameters: %d", sum(p.numel() for p in model.parameters()))

        if cfg.allow_resume:
            path = latest_checkpoint(cfg.save_folder)
            if path is not None:
                log.info("Resuming from %s", path)
                trainer.restore_checkpoint(path)
            else:
                log.info("Nothing to resume in %s", cfg.save_folder)

    dist.barrier()
    trainer.fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(TrainConfig.from_cli())
