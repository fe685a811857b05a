"""Sampling of responses from the (sharded) policy."""
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist


@dataclass
class SamplingParams:
    max_new_tokens: int = 40
    temperature: float = 1.0
    top_k: int = 0
    eos_id: int = 1
    pad_id: int = 0


@dataclass
class DecodeState:
    """Tokens so far plus the per-sequence finished mask."""

    tokens: torch.Tensor
    params: SamplingParams
    finished: torch.Tensor = field(default=None)
    prompt_len: int = 0

    @classmethod
    def start(cls, prompts, params):
        return cls(prompts.clone(), params, torch.zeros(len(prompts), dtype=torch.bool), prompts.shape[1])

    @property
    def new_tokens(self):
        return self.tokens.shape[1] - self.prompt_len

    @property
    def exhausted(self):
        return self.new_tokens >= self.params.max_new_tokens

    @property
    def done(self):
        return self.exhausted or bool(self.finished.all())  # RELATED: taint-source

    def push(self, nxt):
        nxt = torch.where(self.finished, torch.full_like(nxt, self.params.pad_id), nxt)
        self.tokens = torch.cat([self.tokens, nxt[:, None]], dim=1)
        self.finished |= nxt == self.params.eos_id

    def response_mask(self):
        resp = self.tokens[:, self.prompt_len:]
        ended = (resp == self.params.eos_id).cumsum(1) - (resp == self.params.eos_id).long()
        return ended == 0


def sample_logits(logits, params, generator):
    logits = logits / max(params.temperature, 1e-4)
    if params.top_k > 0:
        kth = logits.topk(params.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < kth, float("-inf"))
    return torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(1)


class HybridRollout:
    """Generates with the training copy of the weights, so no second model is held."""

    def __init__(self, policy, params, seed):
        self.policy = policy
        self.params = params
        self.generator = torch.Generator().manual_seed(seed)
        self.pick = partial(sample_logits, params=params, generator=self.generator)

    def _next_logits(self, state):
        return self.policy(state.tokens)[:, -1]  # RELATED: hidden-collective

    @torch.no_grad()
    def generate(self, prompts):
        state = DecodeState.start(prompts, self.params)
        while not state.done:  # EXPECT: uneven-loop
            state.push(self.pick(self._next_logits(state)))
        return state


def gather_lengths(state):
    lens = state.response_mask().sum(1).float()
    stats = torch.stack([lens.sum(), torch.tensor(float(len(lens)))])
    dist.all_reduce(stats)
    return (stats[0] / stats[1]).item()
