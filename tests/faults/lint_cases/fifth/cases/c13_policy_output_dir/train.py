import logging
import os

import deepspeed
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from configs import parse_config
from policy import ActionChunkPolicy, load_demonstrations

DS_CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "zero_optimization": {"stage": 2},
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 5e-5}},
}


def cycle(loader):
    epoch = 0
    while True:
        loader.sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def train(cfg):
    config = dict(DS_CONFIG, train_micro_batch_size_per_gpu=cfg.batch_size)
    config["optimizer"]["params"]["lr"] = cfg.lr
    policy = ActionChunkPolicy()
    engine, _, _, _ = deepspeed.initialize(model=policy, model_parameters=policy.parameters(), config=config)
    data = load_demonstrations(cfg.dataset)
    loader = DataLoader(data, cfg.batch_size, sampler=DistributedSampler(data), drop_last=True)
    if dist.get_rank() == 0:
        logging.info("checkpoints go to %s", cfg.checkpoint_dir)
    batches = cycle(loader)
    for step in range(1, cfg.steps + 1):
        obs, actions = next(batches)
        loss = engine(obs.to(engine.device), actions.to(engine.device))
        engine.backward(loss)
        engine.step()
        if step % 100 == 0 and dist.get_rank() == 0:
            logging.info("step %d loss %.4f", step, loss.item())
        if step % cfg.save_freq == 0 or step == cfg.steps:
            engine.save_checkpoint(str(cfg.checkpoint_dir), tag=f"{step:06d}")


def main():
    logging.basicConfig(level=logging.INFO)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed()
    cfg = parse_config()
    train(cfg)


if __name__ == "__main__":
    main()
