"""Train a small model; print `rank <r> resumed <step> from <folder>` and `rank <r> step <n>`.

Arguments: the last step, the checkpoint interval, the step after which rank 1 is killed in
generation 0, and further storage locations for copies.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import holdfast


def print_line(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(4096, 4), torch.randn(4096, 1))
loader = DataLoader(data, batch_size=4, num_workers=int(os.environ.get("LOADER_WORKERS", "1")))
steps, every, killed = map(int, sys.argv[1:4])
checkpoint = holdfast.Checkpoint(
    "ckpts", model=model, optimizer=optimizer, every_steps=every, copies=["copy", *sys.argv[4:]]
)
loop = holdfast.loop(loader, checkpoint=checkpoint, steps=steps, epochs=1000)
for number, (x, y) in enumerate(loop):
    if number == 0:
        print_line(
            f"rank {rank} resumed {loop.step - 1} from {checkpoint.last.folder if checkpoint.last else 'nothing'}"
        )
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    print_line(f"rank {rank} step {loop.step}")
    time.sleep(0.02)
    if loop.step == killed and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
del model  # before its group (PROC013)
dist.destroy_process_group()
