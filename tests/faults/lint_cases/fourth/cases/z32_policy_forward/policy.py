import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def unwrap(model):
    return model.module if isinstance(model, DistributedDataParallel) else model


def token_logps(logits, ids):
    return logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)


@torch.no_grad()
def sample(model, prompts, new_tokens, temperature=0.8):
    net = unwrap(model)
    ids = prompts
    for _ in range(new_tokens):
        probs = F.softmax(net(ids)[:, -1] / temperature, dim=-1)
        ids = torch.cat([ids, torch.multinomial(probs, 1)], dim=1)
    return ids


def grpo_loss(model, reference, ids, prompt_length, advantages, beta=0.02):
    net = unwrap(model)
    logps = token_logps(net(ids), ids)[:, prompt_length - 1 :]
    with torch.no_grad():
        ref = token_logps(reference(ids), ids)[:, prompt_length - 1 :]
    kl = (ref - logps).exp() - (ref - logps) - 1
    gain = (logps - logps.detach()).exp() * advantages[:, None]
    return -(gain - beta * kl).mean()
