import os

import torch


class Checkpointer:
    def __init__(self, serialization_dir, every=1):
        self.serialization_dir = serialization_dir
        self.every = every

    def should_save(self, epoch):
        return (epoch + 1) % self.every == 0

    def save(self, epoch, trainer):
        raise NotImplementedError


class TorchCheckpointer(Checkpointer):
    def save(self, epoch, trainer):
        os.makedirs(self.serialization_dir, exist_ok=True)
        path = os.path.join(self.serialization_dir, f"model_state_epoch_{epoch}.th")
        torch.save(trainer.model.state_dict(), path)


class DeepspeedCheckpointer(Checkpointer):
    def save(self, epoch, trainer):
        trainer.engine.save_checkpoint(
            self.serialization_dir, tag=f"epoch_{epoch}", client_state={"epoch": epoch, **trainer.metrics}
        )
