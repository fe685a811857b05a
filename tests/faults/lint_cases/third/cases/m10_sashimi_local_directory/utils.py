import os
import re


def find_max_epoch(path):
    """Finds the newest checkpoint in a directory, -1 if there is none."""
    epoch = -1
    for name in os.listdir(path):
        match = re.fullmatch(r"(\d+)\.pkl", name)
        if match:
            epoch = max(epoch, int(match.group(1)))
    return epoch


def local_directory(name, model_cfg, output_directory):
    local_path = f"{name}_h{model_cfg['hidden']}_d{model_cfg['layers']}"
    checkpoint_directory = os.path.join("exp", local_path, output_directory)
    if not os.path.isdir(checkpoint_directory):
        os.makedirs(checkpoint_directory)
        os.chmod(checkpoint_directory, 0o775)
    return local_path, checkpoint_directory
