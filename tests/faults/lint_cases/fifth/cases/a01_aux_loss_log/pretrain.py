from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from layers import build_stage
from moe_tracker import AuxLossTracker
from parallel import initialize


def average_gradients(module, group):
    for p in module.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=group)


def main():
    cfg = SimpleNamespace(num_layers=16, first_dense=4, dim=512, experts=8, steps=1000)
    state = initialize(pp_size=4)
    device = torch.device("cuda", torch.cuda.current_device())
    tracker = AuxLossTracker(cfg.num_layers, device)
    torch.manual_seed(state.pp_rank)
    module = build_stage(cfg, state, tracker).to(device)
    stage = PipelineStage(module, state.pp_rank, state.pp_size, device, group=state.pp_group)
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
    torch.manual_seed(100 + state.dp_rank)

    for step in range(cfg.steps):
        optimizer.zero_grad()
        batch = torch.randn(16, 128, cfg.dim, device=device)
        if state.pp_rank == 0:
            schedule.step(batch)
        elif state.is_last_stage:
            schedule.step(target=batch)
        else:
            schedule.step()
        average_gradients(module, state.dp_group)
        optimizer.step()
        if step % 10 == 0:
            tracker.reduce(state)
            if state.is_last_stage and state.dp_rank == 0:
                print(step, tracker.means(cfg.num_layers - cfg.first_dense))
        tracker.clear()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
