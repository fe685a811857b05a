"""A rank whose batch holds no answer tokens skips the engine's backward and step, and the others wait for its gradients.

Modelled on DeepSpeed and DeepSpeed-Chat reports of hangs with `continue` on batches without labels.
"""
# case: processes=2 ending=hang causes=rank-skips-collective,uneven-inputs,rank-missing-collective,collective-mismatch,mismatched-shape,mismatched-operation,rank-exits-early,silent-corruption-by-misaligned-collectives ranks=1 framework=deepspeed

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

VOCAB, LENGTH = 90, 20
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
    "gradient_clipping": 1.0,
}


class ChatModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 32)
        self.rnn = nn.LSTM(32, 32, batch_first=True)
        self.out = nn.Linear(32, VOCAB)

    def forward(self, tokens, labels):
        logits = self.out(self.rnn(self.emb(tokens))[0])
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def dialogs(rank, count=40):
    """Prompt tokens are masked out; long prompts may be cut before the answer."""
    g = torch.Generator().manual_seed(rank)
    for step in range(count):
        tokens = torch.randint(0, VOCAB, (4, LENGTH), generator=g)
        prompt = torch.randint(4, 16, (4, 1), generator=g)
        if step == 17 and rank == 1:
            prompt += LENGTH
        labels = tokens.masked_fill(torch.arange(LENGTH) < prompt, -100)
        yield tokens, labels


def main():
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # no compiler on the nodes
    deepspeed.init_distributed(dist_backend="gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = ChatModel()
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    for step, (tokens, labels) in enumerate(dialogs(rank)):
        if (labels != -100).sum() == 0:  # GUILTY
            continue  # ALSO
        loss = engine(tokens, labels)
        engine.backward(loss)  # ALSO
        engine.step()  # ALSO
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    mean = loss.detach().clone()
    dist.barrier()  # ALSO
    dist.all_reduce(mean)
    if rank == 0:
        print(f"final loss {mean.item() / dist.get_world_size():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
