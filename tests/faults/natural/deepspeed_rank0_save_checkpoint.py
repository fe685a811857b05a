"""DeepSpeed's save_checkpoint is called on rank 0 only, although all ranks must call it."""
# case: processes=2 ending=hang causes=rank-guarded-collective ranks=0 framework=deepspeed

import tempfile

import deepspeed
import torch
import torch.nn as nn


def ds_config():
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 0},
        "steps_per_print": 1000,
    }


class Classifier(nn.Module):
    def __init__(self, vocab=100, dim=32, classes=2):
        super().__init__()
        self.embed = nn.EmbeddingBag(vocab, dim)
        self.fc = nn.Linear(dim, classes)

    def forward(self, tokens, labels):
        return nn.functional.cross_entropy(self.fc(self.embed(tokens)), labels)


def main():
    deepspeed.ops.__compatible_ops__.pop("deepspeed_shm_comm", None)  # no compiler on this host
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(11)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=ds_config()
    )
    output_dir = tempfile.mkdtemp()
    rank = engine.global_rank

    best_loss = float("inf")
    for epoch in range(3):
        total = 0.0
        for _ in range(20):
            tokens = torch.randint(0, 100, (4, 10))
            labels = (tokens.sum(dim=1) % 2).long()
            loss = engine(tokens, labels)
            engine.backward(loss)
            engine.step()
            total += loss.item()
        mean_loss = total / 20
        if rank == 0:  # ALSO
            print(f"epoch {epoch}: loss {mean_loss:.4f}", flush=True)
            if mean_loss < best_loss:
                best_loss = mean_loss
                engine.save_checkpoint(output_dir, tag=f"epoch{epoch}")  # GUILTY
    deepspeed.comm.barrier()
    if rank == 0:
        print("best loss", best_loss)


if __name__ == "__main__":
    main()
