import json
import os
import shutil
import time

import torch.distributed as dist

from ckpt_utils import get_latest_checkpoint_path, save


class CheckpointEveryEpoch:
    def __init__(self, dirpath):
        self.dirpath = dirpath

    def on_train_epoch_end(self, trainer):
        save(self.dirpath, trainer.epoch, trainer.step, trainer.model.module, trainer.optimizer)


class PublishLatest:
    """Copies the newest checkpoint to the folder that the ranking service watches."""

    def __init__(self, dirpath, publish_dir, every_n_epochs):
        self.dirpath, self.publish_dir, self.every_n_epochs = dirpath, publish_dir, every_n_epochs

    def on_train_epoch_end(self, trainer):
        if (trainer.epoch + 1) % self.every_n_epochs:
            return
        if dist.get_rank() == 0:
            latest = get_latest_checkpoint_path(self.dirpath)
            if latest is not None:
                target = os.path.join(self.publish_dir, os.path.basename(latest))
                shutil.copytree(latest, target, dirs_exist_ok=True)
                with open(os.path.join(self.publish_dir, "current.json"), "w") as fp:
                    json.dump({"path": target, "time": time.time()}, fp)
