"""Small language model over a pipeline, input and output embedding tied across the first and the last stage."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

import parallel_state as ps
from grads import clip_grad_norm, finalize_model_grads, sync_embedding_init

VOCAB, HIDDEN, SEQ, MICRO, MICRO_BATCHES = 64, 32, 12, 2, 3


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = None
        if ps.is_first_stage() or ps.is_last_stage():
            self.embedding = nn.Embedding(VOCAB, HIDDEN)
            self.embedding.weight.shared = True
        self.block = nn.Sequential(nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, 2 * HIDDEN), nn.GELU(), nn.Linear(2 * HIDDEN, HIDDEN))

    def shared_embedding_weight(self):
        return self.embedding.weight

    def forward(self, tokens, hidden, labels):
        x = self.embedding(tokens) if ps.is_first_stage() else hidden
        x = x + self.block(x)
        if not ps.is_last_stage():
            return x
        logits = F.linear(x, self.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def recv_from(rank, device):
    buf = torch.empty(MICRO, SEQ, HIDDEN, device=device)
    dist.recv(buf, src=rank)
    return buf


def forward_backward(stage, batches, device):
    """All forwards, then all backwards."""
    stash, total = [], torch.zeros((), device=device)
    for tokens, labels in batches:
        hidden = None
        if not ps.is_first_stage():
            hidden = recv_from(ps.prev_rank(), device).requires_grad_()
        out = stage(tokens, hidden, labels)
        if ps.is_last_stage():
            out = out / len(batches)
            total += out.detach()
        else:
            dist.send(out.detach().contiguous(), dst=ps.next_rank())
        stash.append((hidden, out))
    for hidden, out in stash:
        grad = None if ps.is_last_stage() else recv_from(ps.next_rank(), device)
        torch.autograd.backward(out, grad)
        if hidden is not None:
            dist.send(hidden.grad, dst=ps.prev_rank())
    return total


def mean_loss(total):
    """Mean over the data parallel ranks, known to the last stage first and then to every stage."""
    if ps.is_last_stage():
        dist.all_reduce(total, group=ps.get_data_group())
        total /= dist.get_world_size(group=ps.get_data_group())
    dist.broadcast(total, src=ps.last_rank(), group=ps.get_pipeline_group())
    return total.item()


def main():
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    try:
        ps.initialize_model_parallel(int(os.environ.get("PIPELINE_STAGES", "2")))
        torch.manual_seed(1234 + 100 * ps.pipeline_rank())
        stage = Stage().to(device)
        sync_embedding_init(stage)
        opt = torch.optim.SGD(stage.parameters(), lr=0.1)
        gen = torch.Generator().manual_seed(7 + ps.data_rank())
        for step in range(1, 21):
            tokens = torch.randint(0, VOCAB, (MICRO_BATCHES, MICRO, SEQ + 1), generator=gen).to(device)
            batches = [(t[:, :-1], t[:, 1:]) for t in tokens]
            opt.zero_grad(set_to_none=False)
            for p in stage.parameters():
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            total = forward_backward(stage, batches, device)
            finalize_model_grads(stage)
            clip_grad_norm(stage, 1.0)
            opt.step()
            if step % 10 == 0:
                loss = mean_loss(total)
                if dist.get_rank() == 0:
                    print(f"step {step} loss {loss:.4f}")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
