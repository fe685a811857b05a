import os
import random
import time

import numpy as np
import torch
import torch.distributed as dist


def launch():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    return dist.get_rank(), torch.device("cuda", local_rank)


def agree_on_seed(seed, device):
    """A seed of 0 means: pick one, the same for the whole job."""
    value = torch.tensor([seed or int(time.time())], device=device)
    dist.broadcast(value, src=0)
    return int(value.item())


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
