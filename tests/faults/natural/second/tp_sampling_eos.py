"""Tensor-parallel ranks sample the next token with different seeds, so one of them draws the end token and leaves the loop first.

Modelled on openai/gpt-oss#270 (sampling can diverge across model-parallel ranks) and huggingface/transformers#36634.
"""
# case: processes=4 ending=hang causes=uneven-inputs,rank-missing-collective,collective-mismatch,mismatched-operation,rank-skips-collective ranks=3 framework=tp

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

VOCAB, EOS, CONTEXT, DIM = 64, 0, 8, 32


class FeedForward(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden)
        self.w2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.w2(torch.nn.functional.silu(self.w1(x)))


class WindowLM(nn.Module):
    """Predicts the next token from a window of the last CONTEXT tokens."""

    def __init__(self, layers=2):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.mix = nn.Linear(CONTEXT * DIM, DIM)
        self.layers = nn.ModuleList(FeedForward(DIM, 4 * DIM) for _ in range(layers))
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, window):
        x = self.mix(self.emb(window).flatten(-2))
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


@torch.inference_mode()
def generate(model, prompt, max_new_tokens=500, temperature=1.0):
    tokens = list(prompt)
    for _ in range(max_new_tokens):
        window = torch.tensor(tokens[-CONTEXT:])
        probs = torch.softmax(model(window) / temperature, dim=-1)  # ALSO
        token = int(torch.multinomial(probs, num_samples=1))  # ALSO
        if token == EOS:
            break  # GUILTY
        tokens.append(token)
    return tokens[len(prompt):]


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = WindowLM().eval()
    plan = {}
    for i in range(len(model.layers)):
        plan[f"layers.{i}.w1"] = ColwiseParallel()
        plan[f"layers.{i}.w2"] = RowwiseParallel()
    parallelize_module(model, mesh["tp"], plan)

    torch.manual_seed(1234 + rank)  # ALSO
    for i in range(20):
        prompt = [(i * 5 + k) % (VOCAB - 1) + 1 for k in range(CONTEXT)]
        answer = generate(model, prompt)
        if rank == 0:
            print(f"prompt {i}: {len(answer)} tokens: {answer[:12]} ...", flush=True)
        dist.barrier()  # ALSO
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
