import logging
import shutil

import torch


def latest_step(config):
    steps = [int(p.name) for p in config.checkpoint_dir.iterdir() if p.name.isdigit()]
    return max(steps) if steps else None


def initialize_checkpoint_dir(config):
    """Returns True when an existing run goes on."""
    if config.resume and config.overwrite:
        raise ValueError("resume and overwrite exclude each other")
    directory = config.checkpoint_dir
    if directory.exists():
        if config.overwrite:
            shutil.rmtree(directory)
            logging.info("removed old checkpoints in %s", directory)
        elif not config.resume:
            raise FileExistsError(f"{directory} exists, pass --overwrite or --resume")
    elif config.resume:
        raise FileNotFoundError(f"nothing to resume in {directory}")
    directory.mkdir(parents=True, exist_ok=True)
    return config.resume


def save(config, step, model, optimizer):
    target = config.checkpoint_dir / f"tmp_{step}"
    target.mkdir(exist_ok=True)
    torch.save(model.state_dict(), target / "model.pt")
    torch.save(optimizer.state_dict(), target / "optimizer.pt")
    target.rename(config.checkpoint_dir / str(step))


def load(config, model, optimizer, device):
    step = latest_step(config)
    if step is None:
        return 0
    source = config.checkpoint_dir / str(step)
    model.load_state_dict(torch.load(source / "model.pt", map_location=device))
    optimizer.load_state_dict(torch.load(source / "optimizer.pt", map_location=device))
    return step
