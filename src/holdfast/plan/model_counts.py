"""Parameter counts of a module of any architecture, which suffice to estimate its model states.

Activations cannot be derived: they depend on what the module computes.
:mod:`holdfast.plan.torch_tracing` makes a :class:`ModuleSummary` of any ``nn.Module``. If it
recognizes a transformer, its shape is included, and
:func:`holdfast.plan.memory.estimate.estimate_memory` covers the rest.
"""

from __future__ import annotations

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.plan.memory.states import ModelStates, ParameterCounts, model_states, stage_parameters
from holdfast.plan.models import Transformer
from holdfast.plan.setup import TrainingSetup


class ModulePart(msgspec.Struct, frozen=True):
    """Parameters of one part of a module; ``trained`` of them have gradients.

    A tied parameter counts for the part where it occurs first.
    """

    name: str
    params: int
    trained: int


class LayerStack(msgspec.Struct, frozen=True):
    """``count`` equal consecutive layers at ``path``; ``params`` and ``trained`` are per layer."""

    path: str
    layer: str
    count: int
    params: int
    trained: int


class ModuleSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A module in numbers. ``dtypes``: parameters by dtype; ``buffers``: their bytes.

    ``names``: those of ``named_parameters()`` in order. ``tied``: names of identical parameters.
    ``stacks`` are sorted by size, the largest first.
    ``factored_numbers``: rows plus columns of all matrices. ``unfused_norms``: RMS norms written as
    single operations; ``dropout``: the module has some. ``transformer`` is the shape if recognized;
    ``unknown`` explains what is unknown, a sentence each.
    """

    name: str
    params: int
    trained: int
    dtypes: dict[str, int] = {}
    buffers: int = 0
    names: tuple[str, ...] = ()
    parts: tuple[ModulePart, ...] = ()
    stacks: tuple[LayerStack, ...] = ()
    tied: tuple[tuple[str, ...], ...] = ()
    factored_numbers: int = 0
    transformer: Transformer | None = None
    unfused_norms: bool = False
    dropout: bool = False
    unknown: tuple[str, ...] = ()

    def apply_to(self, setup: TrainingSetup) -> TrainingSetup:
        """Return the setup with the module's kind of norms and dropout."""
        return msgspec.structs.replace(
            setup, fused_norms=not self.unfused_norms, dropout=self.dropout
        )

    @property
    def sizes(self) -> ParameterCounts:
        """Return counts for the state formulas; all but the largest stack counts as embedding."""
        stack = self.stacks[0] if self.stacks else LayerStack("", "", 0, 0, 0)
        layers = max(1, stack.count)
        return ParameterCounts(
            layers=layers,
            matrices=stack.params,
            experts=0,
            norms=0,
            factored_numbers=self.factored_numbers // layers,
            embedding=self.params - stack.count * stack.params,
            head=0,
            last_norm=0,
            tied=False,
            trained=self.trained / self.params if self.params else 0.0,
        )


def module_states(model: ModuleSummary, setup: TrainingSetup) -> ModelStates:
    """Return the bytes that each rank keeps between steps; buffers count as parameters.

    Raises:
        InvalidValue: tensor, pipeline or expert parallelism: the division of weights is unknown.
    """
    if setup.tensor > 1 or setup.pipeline > 1 or setup.expert > 1:
        raise InvalidValue(
            "tensor, pipeline or expert parallelism", why=f"how they divide {model.name} is unknown"
        )
    states = model_states(stage_parameters(model.sizes, setup, 0), setup)
    return states._replace(parameters=states.parameters + model.buffers)
