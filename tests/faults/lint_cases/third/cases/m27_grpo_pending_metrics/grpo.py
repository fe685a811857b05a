import torch
from torch.utils.data import DataLoader

from grpo_trainer import GRPOTrainer, TinyPolicy, format_reward


@torch.no_grad()
def sample(model, ids, length=32):
    out = ids
    for _ in range(length):
        out = torch.cat([out, torch.multinomial(model(out)[:, -1].softmax(-1), 1)], dim=1)
    completion = out[:, ids.size(1) :]
    return completion, ["".join(chr(c) for c in row) for row in completion.tolist()]


if __name__ == "__main__":
    torch.manual_seed(0)
    rows = [{"input_ids": torch.randint(32, 127, (16,))} for _ in range(1024)]
    trainer = GRPOTrainer(TinyPolicy(), [format_reward], DataLoader(rows, batch_size=4, shuffle=True))
    trainer.train(sample, max_steps=200)
