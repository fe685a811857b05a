import torch
from accelerate import Accelerator
from accelerate.utils import gather_object


class PPOTrainer:
    def __init__(self, config, model, ref_model, tokenizer, dataloader):
        self.config = config
        self.accelerator = Accelerator(log_with=config.log_with)
        self.tokenizer = tokenizer
        self.optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
        self.model, self.optimizer, self.dataloader = self.accelerator.prepare(model, self.optimizer, dataloader)
        self.ref_model = ref_model.to(self.accelerator.device).eval()
        self.accelerator.init_trackers(config.project)
        self.current_step = 0

    def log_probs(self, model, tokens):
        logits = model(tokens).logits[:, :-1]
        return logits.log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)

    def step(self, queries, responses, rewards):
        tokens = torch.cat([queries, responses], dim=1)
        with torch.no_grad():
            reference = self.log_probs(self.ref_model, tokens)
            old = self.log_probs(self.model, tokens)
        stats = {}
        for _ in range(self.config.ppo_epochs):
            new = self.log_probs(self.model, tokens)
            ratio = (new - old).exp()
            advantage = rewards[:, None] - self.config.kl_coef * (old - reference)
            loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
            stats["ppo/loss"] = loss.detach()
        self.current_step += 1
        return stats

    def gather_stats(self, stats):
        return {k: self.accelerator.gather(v).mean().item() for k, v in stats.items()}

    def log_stats(self, stats, batch, rewards, columns_to_log=("query", "response")):
        rewards = self.accelerator.gather(rewards).flatten()
        stats = self.gather_stats(stats)
        if self.accelerator.is_main_process:
            logs = dict(stats)
            if self.config.log_with == "wandb":
                import wandb

                gathered = {}
                for column in columns_to_log:
                    gathered[column] = gather_object(batch[column])
                rows = [list(r) for r in zip(*gathered.values(), rewards.cpu().tolist())]
                logs["game_log"] = wandb.Table(columns=[*columns_to_log, "reward"], rows=rows)
            logs["env/reward_mean"] = rewards.mean().item()
            self.accelerator.log(logs, step=self.current_step)
