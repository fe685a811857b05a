"""What is known of a model whose form is not: counts of its weights, from which all that is held can be said.

Activations cannot: they hang on what the module computes. :class:`Described` is made of any ``nn.Module`` by
:mod:`holdfast.runtime.footprint`; where the shape of a transformer is recognised in it, that stands beside the counts,
and :func:`holdfast.plan.memory.footprint` says the rest.
"""

from __future__ import annotations

import msgspec

from holdfast.errors import BadValue
from holdfast.plan.models import Transformer
from holdfast.plan.setup import Setup
from holdfast.plan.states import Held, Sizes, held, owned


class Part(msgspec.Struct, frozen=True):
    """Weights of one part of a module, a tied one counted where it comes first; ``trained`` of them have gradients."""

    name: str
    params: int
    trained: int


class Stack(msgspec.Struct, frozen=True):
    """``count`` equal layers, one after the other, at ``path`` in the module; ``params`` and ``trained`` of each."""

    path: str
    layer: str
    count: int
    params: int
    trained: int


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """A module in numbers. ``dtypes``: weights by type; ``buffers``: their bytes; ``tied``: names of one and the same.

    ``stacks`` is sorted by weights, the largest first. ``edges``: rows and columns of all matrices, in sum.
    ``own_norms``: root-mean-square norms that are written out; ``dropout``: there is some. ``transformer`` is the shape
    where it is recognised, and ``unknown`` what is not known and why, a sentence each.
    """

    name: str
    params: int
    trained: int
    dtypes: dict[str, int] = {}
    buffers: int = 0
    parts: tuple[Part, ...] = ()
    stacks: tuple[Stack, ...] = ()
    tied: tuple[tuple[str, ...], ...] = ()
    edges: int = 0
    transformer: Transformer | None = None
    own_norms: bool = False
    dropout: bool = False
    unknown: tuple[str, ...] = ()

    def as_written(self, setup: Setup) -> Setup:
        """The setup, with what the module itself says of norms and dropout."""
        return msgspec.structs.replace(setup, fused_norms=not self.own_norms, dropout=self.dropout)

    @property
    def sizes(self) -> Sizes:
        """For the formulas of what is held: the largest stack, and all else as if it were an embedding."""
        stack = self.stacks[0] if self.stacks else Stack("", "", 0, 0, 0)
        layers = max(1, stack.count)
        return Sizes(
            layers=layers,
            matrices=stack.params,
            experts=0,
            norms=0,
            edges=self.edges // layers,
            embedding=self.params - stack.count * stack.params,
            head=0,
            last_norm=0,
            tied=False,
            trained=self.trained / self.params if self.params else 0.0,
        )


def states(model: Described, setup: Setup) -> Held:
    """Bytes that each rank holds of it from step to step, buffers as parameters.

    Raises:
        BadValue: it is divided otherwise than among data-parallel ranks: which weights go where is not known.
    """
    if setup.tensor > 1 or setup.pipeline > 1 or setup.expert > 1:
        raise BadValue("tensor, pipeline or expert parallelism", why=f"how {model.name} is divided so is not known")
    here = held(owned(model.sizes, setup, 0), setup)
    return here._replace(parameters=here.parameters + model.buffers)
