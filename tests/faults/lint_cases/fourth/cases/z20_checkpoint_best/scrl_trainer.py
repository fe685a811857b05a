import logging
import os

import torch

import comm

log = logging.getLogger(__name__)


class SCRLTrainer:
    def __init__(self, cfg, model, optimizer, loader, evaluator):
        self.cfg = cfg
        self.model = model
        self.optimizer = optimizer
        self.loader = loader
        self.evaluator = evaluator
        self.cur_epoch = 0
        self.max_accuracy = 0.0

    def _save_checkpoint(self, tag):
        save_path = os.path.join(self.cfg.save_dir, f"checkpoint_{tag}.pth")
        state = {
            "tag": str(tag),
            "epoch": self.cur_epoch,
            "max_accuracy": self.max_accuracy,
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(state, save_path)
        log.info("saved %s", save_path)

    def _train_epoch(self):
        self.model.train()
        self.loader.sampler.set_epoch(self.cur_epoch)
        total = 0.0
        for view1, view2 in self.loader:
            loss = self.model(view1.cuda(non_blocking=True), view2.cuda(non_blocking=True))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
        return comm.reduce_mean(total / len(self.loader)).item()

    def run(self):
        for self.cur_epoch in range(self.cfg.epochs):
            loss = self._train_epoch()
            if comm.is_main_process():
                log.info("epoch %d loss %.4f", self.cur_epoch, loss)
                self._save_checkpoint("last")
            if (self.cur_epoch + 1) % self.cfg.eval_interval == 0:
                accuracy = self.evaluator(self.model)
                if accuracy > self.max_accuracy:
                    self.max_accuracy = accuracy
                    self._save_checkpoint("best")
            comm.synchronize()
