import os
import time

from torch.utils.tensorboard import SummaryWriter


class TensorboardLogs:
    """One writer for training and one for validation, in subfolders of the serialization directory."""

    def __init__(self, serialization_dir, enabled, interval=100):
        self.interval = interval
        self.train_dir = os.path.join(serialization_dir, "log", "train")
        self.validation_dir = os.path.join(serialization_dir, "log", "validation")
        for path in (self.train_dir, self.validation_dir):
            self._prepare(path)
        self.train = SummaryWriter(self.train_dir) if enabled else None
        self.validation = SummaryWriter(self.validation_dir) if enabled else None
        self.started = time.time()

    @staticmethod
    def _prepare(path):
        if not os.path.exists(path):
            os.makedirs(path)

    def scalars(self, writer, values, step):
        if writer is not None and step % self.interval == 0:
            for key, value in values.items():
                writer.add_scalar(key, value, step)

    def close(self):
        for writer in (self.train, self.validation):
            if writer is not None:
                writer.close()
