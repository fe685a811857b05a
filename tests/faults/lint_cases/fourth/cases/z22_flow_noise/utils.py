import os
import random

import numpy as np
import torch
import torch.distributed as dist


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)


def setup(backend="nccl"):
    dist.init_process_group(backend)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return torch.device("cuda", torch.cuda.current_device())


def sample_beta(alpha, beta, n, device):
    gamma1 = torch.rand(n, device=device).pow(1 / alpha)
    gamma2 = torch.rand(n, device=device).pow(1 / beta)
    return gamma1 / (gamma1 + gamma2)
