import copy

import torch
from diffusers import UNet2DModel


def build(args):
    teacher = UNet2DModel(sample_size=64, in_channels=4, out_channels=4)
    teacher.load_state_dict(torch.load("teacher.pt", map_location="cpu"))
    teacher.requires_grad_(False)
    student = copy.deepcopy(teacher)
    student.requires_grad_(True)
    target = copy.deepcopy(teacher)
    return teacher, student, target


@torch.no_grad()
def update_ema(target_params, source_params, rate):
    for targ, src in zip(target_params, source_params):
        targ.mul_(rate).add_(src.to(targ.dtype), alpha=1 - rate)


def ddim_step(x, eps, now, nxt):
    now, nxt = now[:, None, None, None], nxt[:, None, None, None]
    x0 = (x - (1 - now).sqrt() * eps) / now.sqrt()
    return nxt.sqrt() * x0 + (1 - nxt).sqrt() * eps
