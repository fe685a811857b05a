"""The planned model: one or several submodels, or a user's module of unknown architecture."""

from __future__ import annotations

import msgspec

from holdfast.plan.model_counts import ModuleSummary
from holdfast.plan.models import Transformer
from holdfast.plan.submodels import Submodel


class PlanModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of one or several submodels.

    ``arguments``: the command-line arguments that select it; ``assumed``: sizes they leave open.
    ``source``: the function that builds a user's module, and ``summary`` its counts; without
    submodels its architecture is unknown.
    """

    name: str
    arguments: tuple[str, ...]
    submodels: tuple[Submodel, ...]
    assumed: tuple[str, ...] = ()
    source: str = ""
    summary: ModuleSummary | None = None

    @property
    def main_transformer(self) -> Transformer:
        """Return the submodel that computes the loss."""
        return self.submodels[-1].model

    @property
    def is_plain(self) -> bool:
        """Return whether the model is one fully trained submodel, which every formula supports."""
        return (
            len(self.submodels) == 1
            and self.submodels[0].trained
            and self.submodels[0].lora is None
        )

    @property
    def params(self) -> int:
        """Return the number of parameters of all submodels and projectors."""
        if self.summary is not None:
            return self.summary.params
        return sum(submodel.model.params + submodel.projector for submodel in self.submodels)
