import argparse
import logging
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard

from pause import InferencePause
from world import World

log = logging.getLogger("trainer")


def build(dim=1024, depth=8):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(dim, dim), nn.SiLU()) for _ in range(depth))).cuda()
    for block in model:
        fully_shard(block)
    return fully_shard(model)


def save_checkpoint(model, optimizer, directory):
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=directory)


def policy_step(model, optimizer, rollouts):
    states, advantages = rollouts
    loss = -(model(states).mean(dim=-1) * advantages).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", default="outputs")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--save-every", type=int, default=50)
    args = parser.parse_args()
    world = World()
    logging.basicConfig(level=logging.INFO if world.is_master else logging.ERROR)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    pause = InferencePause(world, args.output_dir)
    torch.manual_seed(1 + world.rank)
    failed_saves = 0
    for step in range(1, args.steps + 1):
        loss = policy_step(model, optimizer, (torch.randn(16, 1024).cuda(), torch.randn(16).cuda()))
        dist.all_reduce(loss, op=dist.ReduceOp.AVG)
        log.info("step %d loss %.4f", step, loss.item())
        if step % args.save_every == 0:
            try:
                pause.pause(step)
                save_checkpoint(model, optimizer, Path(args.output_dir) / f"step_{step}")
            except TimeoutError:
                log.exception("checkpoint of step %d skipped", step)
                failed_saves += 1
            finally:
                pause.release(step)
    log.info("done, %d checkpoints skipped", failed_saves)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
