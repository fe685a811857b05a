"""Everything that has to come before and after the training function."""
import datetime
import functools
import os

import torch
import torch.distributed as dist


def _export_comm_settings():
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    os.environ.setdefault("NCCL_DEBUG", "WARN")
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    if os.environ.get("JOB_NO_IB") == "1":
        os.environ["NCCL_IB_DISABLE"] = "1"


def _bind_device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


class Context:
    def __init__(self, device):
        self.device = device
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def say(self, text):
        if self.rank == 0:
            print(text, flush=True)


def launched(load):
    """Decorates `fn(ctx, cfg)`; the configuration is loaded by each process from the same sources."""

    def decorate(fn):
        @functools.wraps(fn)
        def run():
            cfg = load()
            _export_comm_settings()
            device = _bind_device()
            dist.init_process_group(
                backend="nccl" if device.type == "cuda" else "gloo",
                timeout=datetime.timedelta(seconds=cfg.timeout_s),
            )
            try:
                return fn(Context(device), cfg)
            finally:
                dist.destroy_process_group()

        return run

    return decorate
