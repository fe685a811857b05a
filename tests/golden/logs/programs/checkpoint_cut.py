"""A checkpoint that was truncated when the previous job died."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "checkpoint-40.pt")
    torch.save({"weight": torch.ones(1 << 16)}, file)
    file.write_bytes(file.read_bytes()[: 1 << 17])
    print("resuming from checkpoint-40.pt", flush=True)
    torch.load(file, weights_only=True)
