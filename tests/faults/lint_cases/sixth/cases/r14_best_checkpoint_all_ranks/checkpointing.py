import os
import shutil

import torch


def save_checkpoint(net, args, is_best=False):
    os.makedirs(args.save_dir, exist_ok=True)
    filename = f"{args.model}_{args.dataset}.pth"
    path = os.path.join(args.save_dir, filename)
    torch.save(net.state_dict(), path)
    if is_best:
        shutil.copyfile(path, os.path.join(args.save_dir, f"{args.model}_{args.dataset}_best_model.pth"))
