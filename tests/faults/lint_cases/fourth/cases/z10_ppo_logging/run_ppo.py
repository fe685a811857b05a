from dataclasses import dataclass

import torch
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from ppo_trainer import PPOTrainer


@dataclass
class PPOConfig:
    model_name: str = "lvwerra/gpt2-imdb"
    project: str = "ppo-imdb"
    log_with: str = "wandb"
    lr: float = 1.4e-5
    ppo_epochs: int = 4
    kl_coef: float = 0.2
    batch_size: int = 16
    new_tokens: int = 24


def main(config):
    tokenizer = AutoTokenizer.from_pretrained(config.model_name, padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(config.model_name)
    reference = AutoModelForCausalLM.from_pretrained(config.model_name)
    prompts = load_dataset("imdb", split="train").map(lambda e: {"query": e["text"][:60]})["query"]
    loader = DataLoader(list(prompts), batch_size=config.batch_size, shuffle=True, drop_last=True)
    trainer = PPOTrainer(config, model, reference, tokenizer, loader)
    scorer = pipeline("sentiment-analysis", model="lvwerra/distilbert-imdb", device=trainer.accelerator.device)
    for texts in trainer.dataloader:
        queries = tokenizer(list(texts), return_tensors="pt", padding="max_length", truncation=True, max_length=16)
        queries = queries.input_ids.to(trainer.accelerator.device)
        generator = trainer.accelerator.unwrap_model(trainer.model)
        full = generator.generate(queries, do_sample=True, min_new_tokens=config.new_tokens, max_new_tokens=config.new_tokens)
        responses = full[:, queries.shape[1] :]
        batch = {"query": list(texts), "response": tokenizer.batch_decode(responses)}
        scores = scorer([q + r for q, r in zip(batch["query"], batch["response"])])
        rewards = torch.tensor([s["score"] for s in scores], device=queries.device)
        stats = trainer.step(queries, responses, rewards)
        trainer.log_stats(stats, batch, rewards)


if __name__ == "__main__":
    main(PPOConfig())
