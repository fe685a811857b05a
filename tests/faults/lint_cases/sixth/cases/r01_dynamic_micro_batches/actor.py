import torch
import torch.nn.functional as F

from batching import plan_micro_batches


class Actor:
    def __init__(self, module, optimizer, config):
        self.module = module
        self.optimizer = optimizer
        self.config = config

    def _token_logps(self, ids, mask):
        logits = self.module(ids, mask)[:, :-1]
        logps = F.log_softmax(logits.float(), dim=-1)
        return logps.gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)

    @torch.no_grad()
    def compute_log_prob(self, batch):
        self.module.eval()
        ids, mask = batch["ids"], batch["mask"]
        out = torch.zeros(ids.size(0), ids.size(1) - 1, device=ids.device)
        plan = plan_micro_batches(mask.sum(-1).tolist(), self.config.infer_token_budget)
        for index in plan:
            out[index] = self._token_logps(ids[index], mask[index])
        return out

    def update_policy(self, batch):
        self.module.train()
        losses = []
        for mini in self._mini_batches(batch):
            ids, mask = mini["ids"], mini["mask"]
            plan = plan_micro_batches(mask.sum(-1).tolist(), self.config.train_token_budget)
            self.optimizer.zero_grad()
            for index in plan:
                logps = self._token_logps(ids[index], mask[index])
                ratio = torch.exp(logps - mini["old_logps"][index])
                weight = mask[index][:, 1:].float()
                adv = mini["advantages"][index].unsqueeze(-1)
                clipped = ratio.clamp(1 - self.config.clip, 1 + self.config.clip)
                objective = torch.minimum(ratio * adv, clipped * adv)
                loss = -(objective * weight).sum() / weight.sum().clamp(min=1)
                (loss * len(index) / ids.size(0)).backward()
                losses.append(loss.detach())
            self.module.clip_grad_norm_(self.config.max_norm)
            self.optimizer.step()
        return torch.stack(losses).mean()

    def _mini_batches(self, batch):
        size = self.config.mini_batch_size
        total = batch["ids"].size(0)
        for start in range(0, total, size):
            yield {k: v[start:start + size] for k, v in batch.items()}
