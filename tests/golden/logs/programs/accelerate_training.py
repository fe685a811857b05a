"""A training loop with Accelerate and a progress bar; the argument selects the fault."""

import datetime as dt
import os
import signal
import sys

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.utils import find_executable_batch_size, set_seed
from torch.utils.data import DataLoader, Dataset, get_worker_info
from tqdm.auto import tqdm

FAULT = sys.argv[1]


class Sentences(Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if (
            FAULT == "loader"
            and get_worker_info() is not None
            and accelerator.process_index == 1
            and index > 60
        ):
            os.kill(os.getpid(), signal.SIGKILL)
        length = 7 if FAULT == "raises" and index == 31 else 8
        return {"input": torch.rand(length), "target": torch.rand(2)}


def collate(records: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {key: torch.stack([record[key] for record in records]) for key in records[0]}


accelerator = Accelerator(
    cpu=True,
    kwargs_handlers=[InitProcessGroupKwargs(backend="gloo", timeout=dt.timedelta(seconds=10))],
)
set_seed(0)
rank = accelerator.process_index
accelerator.print(
    f"{accelerator.num_processes} processes, mixed precision {accelerator.mixed_precision}"
)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.AdamW(model.parameters())
if FAULT == "uneven":
    loader = DataLoader(Sentences(120 if rank == 2 else 160), batch_size=4, collate_fn=collate)
    model, optimizer = accelerator.prepare(model, optimizer)
else:
    workers = 1 if FAULT == "loader" else 0
    loader = DataLoader(Sentences(240), batch_size=4, collate_fn=collate, num_workers=workers)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)


@find_executable_batch_size(starting_batch_size=64)
def warm_up(batch_size: int) -> int:
    if FAULT == "batch":
        accelerator.print(f"trying a batch of {batch_size}")
        torch.empty(batch_size << (44 if batch_size > 20 else 4))
    return batch_size


accelerator.print(f"batch size {warm_up()}")
progress = tqdm(total=len(loader), disable=not accelerator.is_local_main_process)
for step, batch in enumerate(loader):
    if FAULT == "killed" and (rank, step) == (1, 9):
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "leaves" and (rank, step) == (1, 12):
        print(f"[rank 1] time budget of this job is used up at step {step}, leaving", flush=True)
        sys.exit(0)
    loss = torch.nn.functional.mse_loss(model(batch["input"]), batch["target"])
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    progress.update(1)
    progress.set_postfix(loss=f"{loss.item():.4f}")
progress.close()
if FAULT == "guarded" and accelerator.is_main_process:
    predictions = accelerator.gather_for_metrics(model(batch["input"]).detach())
    accelerator.print(f"validation: {predictions.mean().item():.4f}")
accelerator.wait_for_everyone()
state = accelerator.unwrap_model(model).state_dict()
if FAULT == "state":
    state["classifier.weight"] = state.pop("weight")
    accelerator.unwrap_model(model).load_state_dict(state)
accelerator.print("training finished")
accelerator.end_training()
