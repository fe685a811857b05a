import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


def save(actor, root, iteration):
    folder = os.path.join(root, f"iter_{iteration:07d}")
    model, optim = get_state_dict(actor.model, actor.optimizer)
    dcp.save({"model": model, "optim": optim}, checkpoint_id=folder)
    if dist.get_rank() == 0:
        rng = {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state()}
        torch.save(rng, os.path.join(folder, "rng.pt"))
        with open(os.path.join(root, "latest.txt"), "w") as fp:
            fp.write(str(iteration))
    dist.barrier()


def load(actor, root):
    tracker = os.path.join(root, "latest.txt")
    answer = [None]
    if dist.get_rank() == 0 and os.path.exists(tracker):
        with open(tracker) as fp:
            answer = [int(fp.read())]
    dist.broadcast_object_list(answer, src=0)
    if answer[0] is None:
        return 0
    folder = os.path.join(root, f"iter_{answer[0]:07d}")
    model, optim = get_state_dict(actor.model, actor.optimizer)
    dcp.load({"model": model, "optim": optim}, checkpoint_id=folder)
    set_state_dict(actor.model, actor.optimizer, model_state_dict=model, optim_state_dict=optim)
    rng = torch.load(os.path.join(folder, "rng.pt"), map_location="cpu")
    torch.set_rng_state(rng["cpu"])
    torch.cuda.set_rng_state(rng["cuda"])
    return answer[0]
