"""DeepSpeed ZeRO on CPUs; the argument selects the fault."""

import os
import signal
import sys
import time

import deepspeed
import torch

FAULT = sys.argv[-1]  # --local_rank precedes it
SETTINGS = {
    "train_batch_size": 16 if FAULT == "config" else 6,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
    "steps_per_print": 5,
}

deepspeed.init_distributed("gloo")
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=SETTINGS)
rank = torch.distributed.get_rank()
vocabulary = {"yes": 0, "no": 1}
for step in range(30):
    time.sleep(3 if FAULT == "slow" else 0)
    if FAULT == "killed" and (rank, step) == (2, 12):
        os.kill(os.getpid(), signal.SIGKILL)
    words = ["yes", "maybe" if FAULT == "raises" and (rank, step) == (1, 12) else "no"]
    target = torch.tensor([vocabulary[word] for word in words])
    loss = torch.nn.functional.cross_entropy(engine(torch.rand(2, 8)), target)
    engine.backward(loss)
    engine.step()
if rank == 0:
    print("training finished", flush=True)
torch.distributed.destroy_process_group()
