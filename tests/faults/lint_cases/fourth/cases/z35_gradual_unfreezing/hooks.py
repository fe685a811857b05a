class Hook:
    def before_epoch(self, trainer, epoch):
        pass

    def after_epoch(self, trainer, epoch, metrics):
        pass


class FreezeTrunk(Hook):
    """Trains only the head for the first epochs."""

    def __init__(self, epochs):
        self.epochs = epochs

    @staticmethod
    def set_trainable(module, flag):
        for p in module.parameters():
            p.requires_grad_(flag)

    def before_epoch(self, trainer, epoch):
        if epoch == self.epochs:
            self.set_trainable(trainer.model.module.trunk, True)


class PrintMetrics(Hook):
    def after_epoch(self, trainer, epoch, metrics):
        if trainer.rank == 0:
            print(f"epoch {epoch}: " + ", ".join(f"{k}={v:.4f}" for k, v in metrics.items()))
