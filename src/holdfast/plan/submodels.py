"""Models of several parts, some frozen or with adapters: vision-language models, LoRA, QLoRA.

Frozen parts have no gradients, fp32 copy or optimizer states. Their activations are saved only if a
gradient passes through them, and without the inputs of their matrices, which only weight gradients
need. A frozen submodel before all trained ones saves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.errors import InvalidValue, UnknownName
from holdfast.plan.memory.activations import ALL_SAVED_INPUTS, SavedInputs, layer_activations
from holdfast.plan.memory.estimate import MemoryEstimate, RankMemory, rank_memory_at_peak
from holdfast.plan.memory.peaks import PeakMoment, TransientMemory, transient_memory
from holdfast.plan.memory.states import (
    ModelStates,
    ParameterCounts,
    count_parameters,
    model_states,
    stage_parameters,
)
from holdfast.plan.models import (
    KNOWN_MODELS,
    Transformer,
    get_known_model,
    gpt_like,
    transformer_from_config,
)
from holdfast.plan.setup import TrainingSetup

#: Bytes per weight of NF4 with double quantization: 4 bits, an 8-bit scale per 64 weights, and an
#: fp32 scale per 256 scales (T. Dettmers et al., "QLoRA", 2023, §3: 0.127 bits per weight).
NF4_BYTES = 0.5 + 0.127 / 8
LORA_TARGETS = ("queries", "keys", "values", "output", "gate", "up", "down")


class Lora(msgspec.Struct, frozen=True):
    """Two matrices of rank ``rank`` beside each named matrix (E. Hu et al., "LoRA", 2021)."""

    rank: int = 16
    on: tuple[str, ...] = ("queries", "values")

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise InvalidValue(f"a rank of {self.rank}", why="must be at least 1")
        if unknown := set(self.on) - set(LORA_TARGETS):
            raise InvalidValue(
                f"an adapter on {', '.join(sorted(unknown))}",
                why=f"valid matrices: {', '.join(LORA_TARGETS)}",
            )

    def matrix_shapes(self, model: Transformer) -> tuple[tuple[int, int], ...]:
        """Return the input and output widths of the adapted matrices of one layer."""
        queries, keys = model.heads * model.head_width, model.kv_heads * model.head_width
        shapes = {
            "queries": (model.hidden, queries),
            "keys": (model.hidden, keys),
            "values": (model.hidden, keys),
            "output": (queries, model.hidden),
            "gate": (model.hidden, model.ffn),
            "up": (model.hidden, model.ffn),
            "down": (model.ffn, model.hidden),
        }
        return tuple(shapes[each] for each in self.on)

    def params(self, model: Transformer) -> int:
        """Return the parameters per layer; experts have none."""
        return self.rank * sum(given + made for given, made in self.matrix_shapes(model))


class Submodel(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a model, in the order of forward; the last one computes the loss.

    ``tokens``: tokens per sample (0: the setup's sequence); ``trained``: its own weights are
    trained; ``frozen_bytes``: bytes per frozen weight of its layers' matrices (0: the compute
    dtype, as all else); ``projector``: trained weights that map its output to the next submodel's
    width (their few activations are not counted).
    """

    model: Transformer
    tokens: int = 0
    trained: bool = True
    lora: Lora | None = None
    frozen_bytes: float = 0.0
    projector: int = 0

    @property
    def has_gradients(self) -> bool:
        """Return whether anything in it is trained."""
        return self.trained or self.lora is not None

    @property
    def counts(self) -> ParameterCounts:
        """Return its parameter counts, adapters included."""
        return count_parameters(self.model)._replace(
            trained=float(self.trained),
            adapters=self.lora.params(self.model) if self.lora else 0,
            frozen_bytes=self.frozen_bytes,
            extra=self.projector,
        )

    @property
    def saved_inputs(self) -> SavedInputs:
        """Return the matrices whose inputs are saved for backward."""
        if self.trained:
            return ALL_SAVED_INPUTS
        on = set(self.lora.on) if self.lora else set()
        return SavedInputs(
            bool(on & {"queries", "keys", "values"}), bool(on & {"gate", "up"}), "down" in on
        )


#: CLIP's vision model: a class token and 576 patches of 14 x 14 pixels. The patch embedding counts
#: as an embedding of 588 rows.
_CLIP_L = gpt_like("clip-vit-l-336", 24, 1024, 16, 14 * 14 * 3, 576 + 2)


def _llava(language: Transformer, tokens: int) -> tuple[Submodel, ...]:
    projector = (1024 + 1) * language.hidden + (language.hidden + 1) * language.hidden
    return (
        Submodel(model=_CLIP_L, tokens=tokens, trained=False, projector=projector),
        Submodel(model=language),
    )


#: By name, as they are fine-tuned: the vision model frozen, projector and language model trained
#: (H. Liu et al., "Visual Instruction Tuning", 2023, §4.2). LLaVA 1.6 encodes an image whole and in
#: up to four parts. Sizes: huggingface.co/liuhaotian/llava-v1.5-7b, llava-v1.6-34b,
#: openai/clip-vit-large-patch14-336, config.json of each.
KNOWN_SUBMODELS: Mapping[str, tuple[Submodel, ...]] = {
    "llava-1.5-7b": _llava(get_known_model("llama2-7b"), 577),
    "llava-1.5-13b": _llava(get_known_model("llama2-13b"), 577),
    "llava-1.6-34b": _llava(get_known_model("yi-34b"), 5 * 577),
}


def get_known_submodels(name: str) -> tuple[Submodel, ...]:
    """Return the parts of the named model, case-insensitively; a single part is trained.

    Raises:
        UnknownName: no such model; the message suggests the nearest names.
    """
    submodels = KNOWN_SUBMODELS.get(name.casefold())
    if submodels is not None:
        return submodels
    if name.casefold() not in KNOWN_MODELS:
        raise UnknownName("model", name, [*KNOWN_SUBMODELS, *KNOWN_MODELS])
    return (Submodel(model=get_known_model(name)),)


#: Tokens beside those of patches, by architecture of the vision model.
_IMAGE_TOKENS = {"clip_vision_model": 1, "siglip_vision_model": 0}


def submodels_from_config(config: Mapping[str, Any], name: str = "") -> tuple[Submodel, ...]:
    """Return the parts that a Hugging Face ``config.json`` describes: text, or vision and text.

    The vision model is frozen, its two-layer projector trained; ``msgspec.structs.replace`` changes
    that.

    Raises:
        UnknownName: an unknown architecture.
        InvalidValue: a size is missing or invalid.
    """
    image, text = config.get("vision_config"), config.get("text_config")
    if not isinstance(image, Mapping) or not isinstance(text, Mapping):
        return (Submodel(model=transformer_from_config(config, name)),)
    kind = str(image.get("model_type"))
    if kind not in _IMAGE_TOKENS:
        raise UnknownName("vision model", kind, _IMAGE_TOKENS)
    image_size, patch = image.get("image_size"), image.get("patch_size")
    if not (isinstance(image_size, int) and isinstance(patch, int) and 0 < patch <= image_size):
        raise InvalidValue(
            f"images of {image_size} in patches of {patch}",
            why="the number of patches cannot be derived",
        )
    tokens = (image_size // patch) ** 2 + _IMAGE_TOKENS[kind]
    like_gpt2 = {
        "model_type": "gpt2",
        "n_embd": image.get("hidden_size"),
        "n_layer": image.get("num_hidden_layers"),
        "n_head": image.get("num_attention_heads"),
        "n_inner": image.get("intermediate_size"),
        "n_positions": tokens + _IMAGE_TOKENS[kind],
        "vocab_size": 3 * patch * patch,
    }
    vision, language = transformer_from_config(like_gpt2, kind), transformer_from_config(text, name)
    projector = (vision.hidden + 1) * language.hidden + (language.hidden + 1) * language.hidden
    return (
        Submodel(model=vision, tokens=tokens, trained=False, projector=projector),
        Submodel(model=language),
    )


def pipeline_unsupported(setup: TrainingSetup) -> InvalidValue:
    """Return the error for a model of several parts, or with adapters, in pipeline stages."""
    return InvalidValue(
        f"--pipeline {setup.pipeline}",
        why="only plain transformers are divided into stages, no models with adapters or several "
        "parts",
        next_step="omit --pipeline; use --tensor or more data-parallel ranks",
    )


def estimate_submodels_memory(
    submodels: Sequence[Submodel],
    setup: TrainingSetup,
    gpu_memory: int | None = None,
    host_memory: int | None = None,
) -> MemoryEstimate:
    """Estimate the memory of a model of these parts on each rank, without pipeline.

    Raises:
        InvalidValue: no submodel, none that is trained, or a pipeline.
    """
    if not any(submodel.has_gradients or submodel.projector for submodel in submodels):
        raise InvalidValue("a model without trained parameters", why="there is no step to plan")
    if setup.pipeline > 1:
        raise pipeline_unsupported(setup)
    return MemoryEstimate((_estimate_rank(submodels, setup),), gpu_memory, host_memory=host_memory)


def _estimate_rank(submodels: Sequence[Submodel], setup: TrainingSetup) -> RankMemory:
    needs_backward = False
    states: list[ModelStates] = []
    moments: list[dict[PeakMoment, TransientMemory]] = []
    for submodel in submodels:
        needs_backward = needs_backward or submodel.has_gradients
        submodel_setup = (
            msgspec.structs.replace(setup, sequence=submodel.tokens) if submodel.tokens else setup
        )
        stage = stage_parameters(submodel.counts, submodel_setup, 0)
        submodel_states = model_states(stage, submodel_setup)
        activations = layer_activations(submodel.model, submodel_setup, submodel.saved_inputs)
        in_flight = 1 if needs_backward else 0
        transient = transient_memory(
            submodel.model,
            submodel_setup,
            stage,
            submodel_states,
            activations,
            in_flight,
            is_last=submodel is submodels[-1],
        )
        states.append(submodel_states)
        moments.append({memory.moment: memory for memory in transient})
        if not needs_backward:
            # Forward only: one layer at a time.
            moments[-1] = {
                PeakMoment.BACKWARD: TransientMemory(PeakMoment.BACKWARD),
                PeakMoment.STEP: moments[-1][PeakMoment.STEP],
            }
        needs_backward = needs_backward or submodel.projector > 0
    total = ModelStates(*(sum(parts) for parts in zip(*states, strict=True)))
    return rank_memory_at_peak(0, setup, total, list(_combine_moments(moments, states)))


def _combine_moments(
    submodels: Sequence[dict[PeakMoment, TransientMemory]], states: Sequence[ModelStates]
) -> list[TransientMemory]:
    """Combine the moments of all submodels.

    While one's backward runs, those before it keep all activations, those after it have gradients.
    """
    loss_submodel = submodels[-1]
    before = sum(submodel[PeakMoment.BACKWARD].activations for submodel in submodels[:-1])
    resident = sum(submodel[PeakMoment.BACKWARD].gradients for submodel in submodels[:-1])
    loss = loss_submodel[PeakMoment.LOSS]
    moments = [
        loss._replace(activations=loss.activations + before, gradients=loss.gradients + resident)
    ]
    for index, submodel in enumerate(submodels):
        earlier_activations = sum(
            submodel[PeakMoment.BACKWARD].activations for submodel in submodels[:index]
        )
        earlier_gradients = sum(
            submodel[PeakMoment.BACKWARD].gradients for submodel in submodels[:index]
        )
        later = sum(state.gradients for state in states[index + 1 :])
        moments += [
            submodel[moment]._replace(
                activations=submodel[moment].activations + earlier_activations,
                gradients=submodel[moment].gradients + earlier_gradients + later,
            )
            for moment in (PeakMoment.BACKWARD, PeakMoment.END)
            if moment in submodel
        ]
    steps = [submodel[PeakMoment.STEP] for submodel in submodels]
    moments.append(
        TransientMemory(
            PeakMoment.STEP,
            gradients=sum(submodel.gradients for submodel in steps),
            temporary=sum(submodel.temporary for submodel in steps),
            buffers=sum(submodel.buffers for submodel in steps),
        )
    )
    return moments
