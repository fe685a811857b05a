"""What torch really keeps for backward of one layer, counted by its hooks on saved tensors, against the formulas."""

import warnings

import msgspec
import pytest
import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy, gelu, rms_norm, scaled_dot_product_attention, silu
from torch.testing._internal.distributed.fake_pg import FakeStore

from holdfast.plan.activations import layer
from holdfast.plan.models import Transformer
from holdfast.plan.peaks import logits
from holdfast.plan.setup import Setup

TOKENS, WIDTH, INNER, HEADS = 64, 64, 192, 4
GPT = Transformer(name="gpt", layers=1, hidden=WIDTH, heads=HEADS, kv_heads=HEADS, head_width=WIDTH // HEADS, ffn=INNER,
                  vocab=128, gated=False, norm_bias=True)  # fmt: skip
LLAMA = Transformer(name="llama", layers=1, hidden=WIDTH, heads=HEADS, kv_heads=2, head_width=WIDTH // HEADS, ffn=INNER,
                    vocab=128)  # fmt: skip

#: Gated, with norms that have a kernel of their own.
WIDE = Transformer(name="wide", layers=1, hidden=WIDTH, heads=HEADS, kv_heads=HEADS, head_width=WIDTH // HEADS,
                   ffn=INNER, vocab=128, norm_bias=True)  # fmt: skip


class Block(nn.Module):
    """A layer of ``model``'s form, as it is usually written."""

    def __init__(self, model, *, flash, dropout):
        super().__init__()
        self.model, self.flash = model, flash
        keys = model.kv_heads * model.head_width
        self.queries, self.keys, self.values = (nn.Linear(WIDTH, each, bias=False) for each in (WIDTH, keys, keys))
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, INNER, bias=False) if model.gated else None
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.weights = nn.ParameterList(nn.Parameter(torch.ones(WIDTH)) for _ in range(2))
        self.dropout = nn.Dropout(0.1 if dropout else 0.0)
        self.enter = nn.ModuleList(nn.Identity() for _ in range(2))  # where a whole sequence is gathered

    def norm(self, place, x):
        if self.model.norm_bias:
            return self.norms[place](x)
        return rms_norm(x, (WIDTH,), self.weights[place])

    def attention(self, x):
        def heads(each):
            return each.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)

        queries, keys, values = heads(self.queries(x)), heads(self.keys(x)), heads(self.values(x))
        times = HEADS // self.model.kv_heads
        keys, values = keys.repeat_interleave(times, dim=1), values.repeat_interleave(times, dim=1)
        if self.flash:
            found = scaled_dot_product_attention(queries, keys, values, is_causal=True)
        else:
            scores = (queries @ keys.transpose(2, 3)).softmax(-1)
            found = (self.dropout(scores) if self.dropout.p else scores) @ values
        return self.output(found.transpose(1, 2).flatten(2))

    def forward(self, x):
        """Attention and the feed-forward part, each after its norm."""

        def residual(found):
            return self.dropout(found) if self.dropout.p else found

        x = x + residual(self.attention(self.enter[0](self.norm(0, x))))
        y = self.enter[1](self.norm(1, x))
        inner = silu(self.gate(y)) * self.up(y) if self.gate else gelu(self.up(y))
        return x + residual(self.down(inner))


def local(tensor):
    """Of this rank."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def kept(block, tokens=TOKENS):
    """Bytes of the different blocks of memory that are saved, without the weights."""
    weights = {local(each.detach()).untyped_storage().data_ptr() for each in block.parameters()}
    found = {}

    def pack(tensor):
        memory = local(tensor.detach()).untyped_storage()
        if memory.data_ptr() not in weights:
            found[memory.data_ptr()] = (memory.nbytes(), tensor)  # kept alive, or its address is used again
        return tensor

    x = torch.randn(1, tokens, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        block(x)
    return sum(size for size, _ in found.values())


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=lambda model: model.name)
@pytest.mark.parametrize(("flash", "dropout"), [(True, False), (False, False), (False, True)])
def test_a_layer_keeps_what_torch_keeps(model, flash, dropout):
    block = Block(model, flash=flash, dropout=dropout).to(torch.bfloat16)
    run = Setup(sequence=TOKENS, flash=flash, dropout=dropout, fused_norms=False)
    # A CPU keeps dropout's masks in the type of what is dropped, a GPU as a byte each.
    masks = (HEADS * TOKENS**2 + 2 * TOKENS * WIDTH) if dropout else 0
    assert layer(model, run).kept == pytest.approx(kept(block) - masks, rel=0.01)


@pytest.fixture
def four_ranks():
    """A mesh of which this process is the first rank; the others do not exist."""
    torch.distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield init_device_mesh("cpu", (4,))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("sequence_parallel", [True, False])
@pytest.mark.parametrize("model", [GPT, WIDE], ids=["gpt", "gated"])
def test_a_tensor_parallel_layer_keeps_what_dtensor_keeps(four_ranks, model, sequence_parallel):
    block = Block(model, flash=True, dropout=False).to(torch.bfloat16)
    back = RowwiseParallel(output_layouts=Shard(1)) if sequence_parallel else RowwiseParallel()
    into = ["queries", "keys", "values", "up", *(["gate"] if model.gated else [])]
    plan = {name: ColwiseParallel() for name in into} | {"output": back, "down": back}
    if sequence_parallel:
        whole = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
        plan |= {"norms.0": SequenceParallel(), "norms.1": SequenceParallel()}
        plan |= {"enter.0": PrepareModuleInput(**whole), "enter.1": PrepareModuleInput(**whole)}
    parallelize_module(block, four_ranks, plan)
    run = Setup(sequence=TOKENS, tensor=4, sequence_parallel=sequence_parallel)
    assert layer(model, run).kept == pytest.approx(kept(block, TOKENS // (4 if sequence_parallel else 1)), rel=0.01)


def most_at_a_loss(spread):
    """Bytes at the peak of a head and its loss; ``spread`` makes the local logits a share of a vocabulary."""
    hidden = torch.randn(TOKENS, 1, dtype=torch.bfloat16, requires_grad=True)
    head = torch.randn(4096, 1, dtype=torch.bfloat16, requires_grad=True)
    tracker = MemTracker()
    with tracker, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = spread(hidden @ head.t())
        loss = cross_entropy(found.float(), torch.zeros(TOKENS, dtype=torch.long))
        del found
        loss.backward()
    return max(size for each in tracker.get_tracker_snapshot("peak").values() for size in each.values())


def test_a_loss_keeps_as_many_copies_of_the_logits():
    model = msgspec.structs.replace(GPT, vocab=4096)
    assert logits(model, Setup(sequence=TOKENS))[0] == pytest.approx(most_at_a_loss(lambda x: x), rel=0.03)


def test_a_loss_over_a_divided_vocabulary_keeps_more(four_ranks):
    model = msgspec.structs.replace(GPT, vocab=4 * 4096)
    with loss_parallel():
        most = most_at_a_loss(lambda x: DTensor.from_local(x, four_ranks, [Shard(1)], run_check=False))
    assert logits(model, Setup(sequence=TOKENS, tensor=4))[0] == pytest.approx(most, rel=0.03)
