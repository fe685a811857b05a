"""The thread that saves a checkpoint calls a barrier of the same group as the training loop; a slow disk changes the order on one rank.

Modelled on KempnerInstitute/KempnerForge#104 (the save thread and the main thread use one process group).
"""
# case: processes=3 ending=hang causes=collective-mismatch,mismatched-operation,collective-order-inversion,rank-skips-collective,rank-missing-collective ranks=- framework=ddp

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class UNetish(nn.Module):
    def __init__(self, channels=16):
        super().__init__()
        self.down = nn.Conv2d(1, channels, 3, stride=2, padding=1)
        self.mid = nn.Conv2d(channels, channels, 3, padding=1)
        self.up = nn.ConvTranspose2d(channels, 1, 4, stride=2, padding=1)

    def forward(self, x):
        return self.up(torch.relu(self.mid(torch.relu(self.down(x)))))


class AsyncCheckpointer:
    """Write checkpoints in the background, so that training does not wait for the disk."""

    def __init__(self, folder, rank):
        self.folder, self.rank = folder, rank
        self.executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="AsyncCheckpoint")
        self.pending = None

    def _write(self, state, step):
        path = os.path.join(self.folder, f"step{step}-rank{self.rank}.pt")
        torch.save(state, path)
        if self.rank == 2:
            time.sleep(1.5)  # fsync on the scratch disk of the third host
        dist.barrier()  # GUILTY
        if self.rank == 0:
            with open(os.path.join(self.folder, "latest"), "w") as f:
                f.write(str(step))

    def save(self, model, step):
        if self.pending is not None:
            self.pending.result()
        state = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
        self.pending = self.executor.submit(self._write, state, step)  # ALSO

    def finish(self):
        if self.pending is not None:
            self.pending.result()
        self.executor.shutdown()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(UNetish())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    checkpointer = AsyncCheckpointer(tempfile.mkdtemp(prefix="unet-"), rank)
    torch.manual_seed(rank)
    for step in range(1, 121):
        clean = torch.randn(4, 1, 16, 16)
        loss = nn.functional.mse_loss(model(clean + 0.3 * torch.randn_like(clean)), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.05)
        if step % 40 == 0:
            checkpointer.save(model, step)  # ALSO
        if step % 10 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    checkpointer.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
