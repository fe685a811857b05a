import datetime
import logging
import os

import torch
import torch.distributed as dist

import comm

logger = logging.getLogger(__name__)


def _connect(backend, timeout):
    url = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        dist.init_process_group(
            backend, init_method=url, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]), timeout=timeout)
    except Exception:
        logger.error("process group URL: %s", url)
        raise


def _choose_device():
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank = comm.get_local_rank()
    assert local_rank < torch.cuda.device_count()
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def launch(main_func, *args, timeout_minutes=10):
    """Joins the job that the environment describes and runs `main_func(device, *args)` in it."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return main_func(_choose_device(), *args)
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "0")
    _connect("nccl" if torch.cuda.is_available() else "gloo", datetime.timedelta(minutes=timeout_minutes))
    try:
        comm.create_local_process_group(int(os.environ["LOCAL_WORLD_SIZE"]))
        device = _choose_device()
        comm.synchronize()
        return main_func(device, *args)
    finally:
        dist.destroy_process_group()
