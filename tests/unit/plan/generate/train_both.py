"""Train the model of a generated script with DeepSpeed, then with the script, in one process.

train_both.py SCRIPT CONFIGURATION STEPS
"""

import importlib.util
import json
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist

script, configuration, steps = sys.argv[1:4]
spec = importlib.util.spec_from_file_location("ours", script)
script_module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script_module)

deepspeed.ops.__compatible_ops__.pop("deepspeed_shm_comm", None)  # it would be compiled on CPUs
deepspeed.init_distributed("gloo")
config = json.loads(Path(configuration).read_text())
model = script_module.build_model()
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
data = script_module.batches(dist.get_rank())
rounds = config["gradient_accumulation_steps"]
for step in range(1, int(steps) + 1):
    total = torch.zeros(())
    for _ in range(rounds):
        loss = script_module.loss_of(engine, next(data))
        engine.backward(loss)
        engine.step()
        total += loss.detach() / rounds
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        sys.stdout.write(f"deepspeed {step} loss {total.item() / dist.get_world_size():.7f}\n")
sys.stdout.flush()

dist.init_process_group = lambda *_: None  # it already exists
sys.argv = [script, "--steps", steps]
script_module.main()
