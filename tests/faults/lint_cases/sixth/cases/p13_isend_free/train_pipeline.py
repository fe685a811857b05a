import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from p2p import StageLink, custom_backward, deallocate_output_tensor


class Stage(nn.Module):
    def __init__(self, hidden, layers):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, hidden), nn.GELU()) for _ in range(layers)
        )

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def forward_step(stage, link, batch):
    received = link.recv_forward()
    output = stage(batch if link.is_first else received)
    if link.is_last:
        output = F.mse_loss(output, batch)
    return received, output


def run_iteration(stage, link, microbatches, deallocate_pipeline_outputs):
    in_flight = []
    losses = []
    for batch in microbatches:
        received, output = forward_step(stage, link, batch)
        if link.is_last:
            losses.append(output.detach())
            output = output / len(microbatches)
        else:
            link.send_forward(output)
            if deallocate_pipeline_outputs:
                deallocate_output_tensor(output)
        in_flight.append((received, output))
    link.wait_send_next()

    for received, output in in_flight:
        custom_backward(output, link.recv_backward())
        if received is not None:
            link.send_backward(received.grad)
    return torch.stack(losses).mean() if losses else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers-per-stage", type=int, default=4)
    parser.add_argument("--micro-batch-size", type=int, default=8)
    parser.add_argument("--num-microbatches", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--keep-pipeline-outputs", action="store_true")
    args = parser.parse_args()

    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(1234 + dist.get_rank())

    stage = Stage(args.hidden, args.layers_per_stage).to(device)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-4)
    link = StageLink((args.micro_batch_size, args.hidden), device)
    data = torch.Generator(device=device).manual_seed(99)

    for iteration in range(args.iterations):
        microbatches = [
            torch.randn(args.micro_batch_size, args.hidden, device=device, generator=data)
            for _ in range(args.num_microbatches)
        ]
        optimizer.zero_grad()
        loss = run_iteration(stage, link, microbatches, not args.keep_pipeline_outputs)
        optimizer.step()
        if loss is not None and iteration % 10 == 0:
            print(f"iteration {iteration} loss {loss.item():.5f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
