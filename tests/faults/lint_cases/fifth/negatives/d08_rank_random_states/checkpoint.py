import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


def _folder(root, iteration):
    return os.path.join(root, f"iter_{iteration:07d}")


def save(model, optimizer, root, iteration):
    folder = _folder(root, iteration)
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": moments}, checkpoint_id=folder)
    rng = {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state()}
    torch.save(rng, os.path.join(folder, f"rng_{dist.get_rank()}.pt"))
    dist.barrier()
    if dist.get_rank() == 0:
        with open(os.path.join(root, "latest.tmp"), "w") as fp:
            fp.write(str(iteration))
        os.replace(os.path.join(root, "latest.tmp"), os.path.join(root, "latest.txt"))


def load(model, optimizer, root):
    found = [-1]
    if dist.get_rank() == 0:
        try:
            with open(os.path.join(root, "latest.txt")) as fp:
                found = [int(fp.read())]
        except FileNotFoundError:
            print("no checkpoint, starting from scratch")
    dist.broadcast_object_list(found, src=0)
    if found[0] < 0:
        return 0
    folder = _folder(root, found[0])
    weights, moments = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optim": moments}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    own = os.path.join(folder, f"rng_{dist.get_rank()}.pt")
    if os.path.exists(own):
        rng = torch.load(own, map_location="cpu")
        torch.set_rng_state(rng["cpu"])
        torch.cuda.set_rng_state(rng["cuda"])
    else:
        torch.manual_seed(found[0] * dist.get_world_size() + dist.get_rank())
    return found[0]
