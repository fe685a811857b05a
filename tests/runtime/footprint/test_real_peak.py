"""A step on a GPU, next to the two ways of saying beforehand what it needs."""

import gc
import importlib.util
from pathlib import Path

import msgspec
import pytest
import torch

from holdfast.plan.memory import footprint
from holdfast.plan.setup import FULL_PRECISION, Recompute, Setup, Strategy
from holdfast.runtime.footprint import simulating
from holdfast.runtime.footprint.kernels import as_on_a_gpu
from holdfast.runtime.footprint.stepping import default_step

_SPEC = importlib.util.spec_from_file_location("small_models", Path(__file__).with_name("small_models.py"))
small = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(small)

MIB = 1 << 20
#: One GPU, all in fp32: what is compared are tensors, and no wrapper besides.
RUN = Setup(strategy=Strategy.DDP, micro_batch=8, sequence=1024, precision=FULL_PRECISION)


def really(setup):
    """Most bytes of tensors and most that were reserved in the second step, when the optimizer has its states."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    with torch.device("cuda"):
        module = small.llama().train()
        step = default_step(module)
        if setup.recompute is Recompute.FULL:
            for place, layer in enumerate(module.layers):
                module.layers[place] = checkpoint_wrapper(layer)
        adjust = torch.optim.AdamW(module.parameters(), foreach=True)
        for _ in range(2):
            torch.cuda.reset_peak_memory_stats()
            step(module, setup.micro_batch, setup.sequence).backward()
            adjust.step()
            adjust.zero_grad()
    return torch.cuda.max_memory_allocated() - before, torch.cuda.max_memory_reserved()


def checkpoint_wrapper(layer):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper as wrap

    return wrap(layer, preserve_rng_state=False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL])
def test_a_gpu_needs_what_both_ways_say(recompute):
    setup = msgspec.structs.replace(RUN, recompute=recompute)
    allocated, reserved = really(setup)
    with as_on_a_gpu(setup):
        simulated = simulating.simulate("small_models", small.llama, setup, None, lambda _: None)
    seen = simulated.footprint.worst
    formula = footprint(simulated.model.transformer, setup).worst
    # A workspace of cuBLAS, and blocks that are rounded up: what a model of this size notices.
    assert seen.tensors == pytest.approx(allocated, rel=0.1, abs=40 * MIB)
    assert formula.tensors == pytest.approx(allocated, rel=0.15, abs=40 * MIB)
    assert reserved >= allocated
    assert seen.reserved == pytest.approx(reserved, rel=0.2, abs=80 * MIB)
