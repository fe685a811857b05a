import random

import numpy as np
import torch


def seed_process(seed, rank, size):
    value = seed * size + rank
    random.seed(value)
    np.random.seed(value % 2 ** 32)
    torch.manual_seed(value)


def seed_worker(worker_id):
    value = torch.initial_seed() % 2 ** 32
    random.seed(value)
    np.random.seed(value)


def shared_split(count, fraction, seed):
    order = np.random.default_rng(seed).permutation(count)
    cut = int(count * fraction)
    return order[:cut].tolist(), order[cut:].tolist()
