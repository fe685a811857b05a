"""Prompt tuning of a frozen backbone. The prompt encoder is sharded with FSDP; adapters hold the computed prompts only."""
import json
import os
from dataclasses import asdict, dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


@dataclass
class PromptConfig:
    num_virtual_tokens: int = 6
    token_dim: int = 16
    encoder_hidden_size: int = 32
    inference_mode: bool = False


@dataclass
class TrainingArguments:
    output_dir: str = field(default_factory=lambda: os.path.join(os.environ.get("CASE_TMP", "."), "prompts"))
    max_steps: int = 4
    save_steps: int = 2
    logging_steps: int = 1
    learning_rate: float = 0.05
    process_index: int = field(default_factory=lambda: int(os.environ.get("RANK", "0")))

    @property
    def world_size(self):
        return dist.get_world_size()

    @property
    def should_save(self):
        return self.process_index == 0

    @property
    def should_log(self):
        return self.process_index == 0


class PromptEncoder(nn.Module):
    """Reparametrises the virtual tokens with a two-layer perceptron."""

    def __init__(self, cfg: PromptConfig):
        super().__init__()
        self.embedding = nn.Embedding(cfg.num_virtual_tokens, cfg.token_dim)
        self.mlp = nn.Sequential(
            nn.Linear(cfg.token_dim, cfg.encoder_hidden_size), nn.ReLU(), nn.Linear(cfg.encoder_hidden_size, cfg.token_dim)
        )

    def forward(self, indices):
        return self.mlp(self.embedding(indices))


class Backbone(nn.Module):
    def __init__(self, vocab=40, dim=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.mix = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, inputs_embeds):
        return self.head(self.mix(inputs_embeds)[0])


class PromptTunedModel(nn.Module):
    def __init__(self, backbone: Backbone, cfg: PromptConfig):
        super().__init__()
        self.cfg = cfg
        self.backbone = backbone.requires_grad_(False)
        self.prompt_encoder = FSDP(PromptEncoder(cfg), device_id=torch.device("cpu"), use_orig_params=True)
        self.register_buffer("prompt_tokens", torch.arange(cfg.num_virtual_tokens), persistent=False)

    def get_prompt(self):
        return self.prompt_encoder(self.prompt_tokens)  # RELATED: hidden-collective

    def forward(self, input_ids):
        prompts = self.get_prompt().unsqueeze(0).expand(len(input_ids), -1, -1)
        logits = self.backbone(torch.cat([prompts, self.backbone.embed(input_ids)], dim=1))
        return logits[:, self.cfg.num_virtual_tokens :]

    @property
    def adapter_state(self):
        """What an inference process needs: the prompts, not the encoder behind them."""
        with torch.no_grad():
            return {"prompt_embeddings": self.get_prompt().detach().clone()}

    def save_pretrained(self, folder, state=None):
        os.makedirs(folder, exist_ok=True)
        torch.save(state if state is not None else self.adapter_state, os.path.join(folder, "adapter_model.bin"))
        with open(os.path.join(folder, "adapter_config.json"), "w") as f:
            json.dump(asdict(self.cfg) | {"inference_mode": True}, f)


class PromptTrainer:
    def __init__(self, model, args: TrainingArguments, data):
        self.model, self.args, self.data = model, args, data
        self.optimizer = torch.optim.Adam(model.prompt_encoder.parameters(), lr=args.learning_rate)
        self.global_step = 0
        self.hooks = [self._maybe_log, self._maybe_save]

    def training_step(self, input_ids):
        logits = self.model(input_ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), input_ids[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def train(self):
        while self.global_step < self.args.max_steps:
            loss = self.training_step(self.data[self.global_step % len(self.data)])
            self.global_step += 1
            for hook in self.hooks:
                hook(loss)

    def _maybe_log(self, loss):
        if self.global_step % self.args.logging_steps:
            return
        dist.all_reduce(loss)
        if self.args.should_log:
            print({"step": self.global_step, "loss": round(loss.item() / self.args.world_size, 4)})

    def _maybe_save(self, _):
        if self.global_step % self.args.save_steps == 0:
            self.save_model(os.path.join(self.args.output_dir, f"checkpoint-{self.global_step}"))

    def save_model(self, folder):
        if self.args.should_save:  # RELATED: guard
            self.model.save_pretrained(folder)  # EXPECT: rank-guarded-wrapped-forward
            with open(os.path.join(folder, "trainer_state.json"), "w") as f:
                json.dump({"global_step": self.global_step, "world_size": self.args.world_size}, f)


def main():
    dist.init_process_group("gloo")
    args = TrainingArguments()
    torch.manual_seed(0)
    model = PromptTunedModel(Backbone(), PromptConfig())
    g = torch.Generator().manual_seed(args.process_index)
    data = [torch.randint(0, 40, (3, 9), generator=g) for _ in range(2)]
    PromptTrainer(model, args, data).train()


if __name__ == "__main__":
    main()
