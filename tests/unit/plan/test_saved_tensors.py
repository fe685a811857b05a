"""Compare the tensors that torch saves for backward of one layer with the formulas."""

import warnings

import msgspec
import pytest
import torch
from torch import nn
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

from holdfast.plan.memory.activations import layer_activations
from holdfast.plan.memory.peaks import logits_bytes
from holdfast.plan.models import Transformer
from holdfast.plan.setup import TrainingSetup

TOKENS, WIDTH, INNER, HEADS = 64, 64, 192, 4
GPT = Transformer(
    name="gpt",
    layers=1,
    hidden=WIDTH,
    heads=HEADS,
    kv_heads=HEADS,
    head_width=WIDTH // HEADS,
    ffn=INNER,
    vocab=128,
    gated=False,
    norm_bias=True,
)
LLAMA = Transformer(
    name="llama",
    layers=1,
    hidden=WIDTH,
    heads=HEADS,
    kv_heads=2,
    head_width=WIDTH // HEADS,
    ffn=INNER,
    vocab=128,
)

#: Gated, with fused norms.
WIDE = Transformer(
    name="wide",
    layers=1,
    hidden=WIDTH,
    heads=HEADS,
    kv_heads=HEADS,
    head_width=WIDTH // HEADS,
    ffn=INNER,
    vocab=128,
    norm_bias=True,
)


class Block(nn.Module):
    """A transformer layer with the configuration of ``model``, in its usual implementation."""

    def __init__(self, model, *, flash, dropout):
        super().__init__()
        self.model, self.flash = model, flash
        keys = model.kv_heads * model.head_width
        self.queries, self.keys, self.values = (
            nn.Linear(WIDTH, each, bias=False) for each in (WIDTH, keys, keys)
        )
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = (
            nn.Linear(WIDTH, INNER, bias=False),
            nn.Linear(INNER, WIDTH, bias=False),
        )
        self.gate = nn.Linear(WIDTH, INNER, bias=False) if model.gated else None
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.weights = nn.ParameterList(nn.Parameter(torch.ones(WIDTH)) for _ in range(2))
        self.dropout = nn.Dropout(0.1 if dropout else 0.0)
        self.enter = nn.ModuleList(nn.Identity() for _ in range(2))  # gather the sequence here

    def norm(self, index, x):
        if self.model.norm_bias:
            return self.norms[index](x)
        return rms_norm(x, (WIDTH,), self.weights[index])

    def attention(self, x):
        def heads(each):
            return each.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)

        queries, keys, values = heads(self.queries(x)), heads(self.keys(x)), heads(self.values(x))
        times = HEADS // self.model.kv_heads
        keys, values = keys.repeat_interleave(times, dim=1), values.repeat_interleave(times, dim=1)
        if self.flash:
            result = scaled_dot_product_attention(queries, keys, values, is_causal=True)
        else:
            scores = (queries @ keys.transpose(2, 3)).softmax(-1)
            result = (self.dropout(scores) if self.dropout.p else scores) @ values
        return self.output(result.transpose(1, 2).flatten(2))

    def forward(self, x):
        """Apply attention and the feed-forward part, each after its norm."""

        def residual(result):
            return self.dropout(result) if self.dropout.p else result

        x = x + residual(self.attention(self.enter[0](self.norm(0, x))))
        y = self.enter[1](self.norm(1, x))
        inner = silu(self.gate(y)) * self.up(y) if self.gate else gelu(self.up(y))
        return x + residual(self.down(inner))


def local(tensor):
    """Return this rank's shard."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def saved_bytes(block, tokens=TOKENS):
    """Return the bytes of the distinct saved storages, excluding the weights."""
    weights = {local(each.detach()).untyped_storage().data_ptr() for each in block.parameters()}
    result = {}

    def pack(tensor):
        memory = local(tensor.detach()).untyped_storage()
        if memory.data_ptr() not in weights:
            result[memory.data_ptr()] = (
                memory.nbytes(),
                tensor,
            )  # kept alive, so that its address is not reused
        return tensor

    x = torch.randn(1, tokens, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        block(x)
    return sum(size for size, _ in result.values())


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=lambda model: model.name)
@pytest.mark.parametrize(("flash", "dropout"), [(True, False), (False, False), (False, True)])
def test_saved_activations_match_torch(model, flash, dropout):
    block = Block(model, flash=flash, dropout=dropout).to(torch.bfloat16)
    run = TrainingSetup(sequence=TOKENS, flash=flash, dropout=dropout, fused_norms=False)
    # On a CPU, dropout masks have the dtype of the input; on a GPU, one byte per element.
    masks = (HEADS * TOKENS**2 + 2 * TOKENS * WIDTH) if dropout else 0
    assert layer_activations(model, run).saved == pytest.approx(
        saved_bytes(block) - masks, rel=0.01
    )


@pytest.fixture
def four_ranks():
    """Return a mesh of 4 ranks; this process is rank 0 and the other ranks do not exist."""
    torch.distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield init_device_mesh("cpu", (4,))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("sequence_parallel", [True, False])
@pytest.mark.parametrize("model", [GPT, WIDE], ids=["gpt", "gated"])
def test_tensor_parallel_activations_match_dtensor(four_ranks, model, sequence_parallel):
    block = Block(model, flash=True, dropout=False).to(torch.bfloat16)
    back = RowwiseParallel(output_layouts=Shard(1)) if sequence_parallel else RowwiseParallel()
    into = ["queries", "keys", "values", "up", *(["gate"] if model.gated else [])]
    plan = {name: ColwiseParallel() for name in into} | {"output": back, "down": back}
    if sequence_parallel:
        gather = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
        plan |= {"norms.0": SequenceParallel(), "norms.1": SequenceParallel()}
        plan |= {"enter.0": PrepareModuleInput(**gather), "enter.1": PrepareModuleInput(**gather)}
    parallelize_module(block, four_ranks, plan)
    run = TrainingSetup(sequence=TOKENS, tensor=4, sequence_parallel=sequence_parallel)
    assert layer_activations(model, run).saved == pytest.approx(
        saved_bytes(block, TOKENS // (4 if sequence_parallel else 1)), rel=0.01
    )


def peak_at_loss(shard):
    """Return the peak bytes of a head and its loss; ``shard`` may shard the vocabulary."""
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    hidden = torch.randn(TOKENS, 1, dtype=torch.bfloat16, requires_grad=True)
    head = torch.randn(4096, 1, dtype=torch.bfloat16, requires_grad=True)
    with tracker, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = shard(hidden @ head.t())
        loss = cross_entropy(result.float(), torch.zeros(TOKENS, dtype=torch.long))
        del result
        loss.backward()
    return max(
        size for each in tracker.get_tracker_snapshot("peak").values() for size in each.values()
    )


def test_logits_copies_match_torch():
    model = msgspec.structs.replace(GPT, vocab=4096)
    assert logits_bytes(model, TrainingSetup(sequence=TOKENS))[0] == pytest.approx(
        peak_at_loss(lambda x: x), rel=0.03
    )


def test_sharded_vocabulary_keeps_more_logits_copies(four_ranks):
    model = msgspec.structs.replace(GPT, vocab=4 * 4096)
    with loss_parallel():
        most = peak_at_loss(
            lambda x: DTensor.from_local(x, four_ranks, [Shard(1)], run_check=False)
        )
    assert logits_bytes(model, TrainingSetup(sequence=TOKENS, tensor=4))[0] == pytest.approx(
        most, rel=0.03
    )
