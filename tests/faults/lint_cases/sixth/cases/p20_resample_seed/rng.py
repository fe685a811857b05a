import os
import random

import numpy as np
import torch


def set_random_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed(seed)


def rng_file(folder, rank):
    return os.path.join(folder, f"rng_{rank}.pt")


def save_rng_state(folder, rank):
    state = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(),
    }
    torch.save(state, rng_file(folder, rank))


def load_rng_state(folder, rank):
    state = torch.load(rng_file(folder, rank), map_location="cpu", weights_only=False)
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    torch.cuda.set_rng_state(state["cuda"])
