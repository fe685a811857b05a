"""Models of several parts, of which some are frozen or have adapters: vision-language models, LoRA, QLoRA.

What is frozen has no gradients, no fp32 copy and nothing of the optimizer's; its activations are kept only as far as a
gradient has to pass through it, without the inputs of its matrices, which only their own gradients need. A frozen tower
before all that is trained keeps nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import BadValue, UnknownName
from holdfast.plan.activations import ALL_INPUTS, Inputs, layer
from holdfast.plan.memory import Footprint, Rank, at_the_peak
from holdfast.plan.models import KNOWN, Transformer, from_config, known
from holdfast.plan.peaks import Moment, Passing, moments
from holdfast.plan.setup import Setup
from holdfast.plan.states import Held, Sizes, held, owned, sizes

#: Bytes a weight of NF4 with double quantization: 4 bits, and of each 64 a scale in 8 bits, of each 256 scales one in
#: fp32 (T. Dettmers et al., "QLoRA", 2023, §3: 0.127 bits a weight).
NF4 = 0.5 + 0.127 / 8
MATRICES = ("queries", "keys", "values", "output", "gate", "up", "down")


class Lora(msgspec.Struct, frozen=True):
    """Two matrices of rank ``rank`` beside each of those named (E. Hu et al., "LoRA", 2021)."""

    rank: int = 16
    on: tuple[str, ...] = ("queries", "values")

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise BadValue(f"a rank of {self.rank}", why="it is less than 1")
        if unknown := set(self.on) - set(MATRICES):
            raise BadValue(f"an adapter on {', '.join(sorted(unknown))}", why=f"there are {', '.join(MATRICES)}")

    def ends(self, model: Transformer) -> tuple[tuple[int, int], ...]:
        """Of one layer: how wide the inputs and outputs of the matrices are beside which they stand."""
        queries, keys = model.heads * model.head_width, model.kv_heads * model.head_width
        found = {
            "queries": (model.hidden, queries), "keys": (model.hidden, keys), "values": (model.hidden, keys),
            "output": (queries, model.hidden), "gate": (model.hidden, model.ffn), "up": (model.hidden, model.ffn),
            "down": (model.ffn, model.hidden),
        }  # fmt: skip
        return tuple(found[each] for each in self.on)

    def params(self, model: Transformer) -> int:
        """Of one layer; experts have none."""
        return self.rank * sum(given + made for given, made in self.ends(model))


class Tower(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a model, in the order in which forward goes through them; the last one has the loss.

    ``tokens`` a sample that go through it (0: the setup's sequence); ``trained``: whether its own weights are;
    ``frozen_bytes`` a weight of its layers' matrices if they are not (0: as computed in, as all else is);
    ``projector``: weights, always trained, of what brings its output to the next tower's width (its few activations are
    not counted).
    """

    model: Transformer
    tokens: int = 0
    trained: bool = True
    lora: Lora | None = None
    frozen_bytes: float = 0.0
    projector: int = 0

    @property
    def learns(self) -> bool:
        """Something in it is trained."""
        return self.trained or self.lora is not None

    @property
    def size(self) -> Sizes:
        """Its parameters, adapters too."""
        return sizes(self.model)._replace(
            trained=float(self.trained),
            adapters=self.lora.params(self.model) if self.lora else 0,
            frozen=self.frozen_bytes,
            beside=self.projector,
        )

    @property
    def inputs(self) -> Inputs:
        """Of which matrices they are kept."""
        if self.trained:
            return ALL_INPUTS
        on = set(self.lora.on) if self.lora else set()
        return Inputs(bool(on & {"queries", "keys", "values"}), bool(on & {"gate", "up"}), "down" in on)


def _clip(name: str, layers: int, hidden: int, heads: int, patches: int) -> Transformer:
    """CLIP's image tower: a class token and patches of 14 x 14 pixels, which take a matrix as wide as 588 rows."""
    return Transformer(name=name, layers=layers, hidden=hidden, heads=heads, kv_heads=heads, head_width=hidden // heads,
                       ffn=4 * hidden, vocab=14 * 14 * 3, gated=False, tied=True, qkv_bias=True, bias=True,
                       norm_bias=True, positions=patches + 2)  # fmt: skip


_CLIP_L = _clip("clip-vit-l-336", 24, 1024, 16, 576)


def _llava(language: Transformer, tokens: int) -> tuple[Tower, ...]:
    projector = (1024 + 1) * language.hidden + (language.hidden + 1) * language.hidden
    return (Tower(model=_CLIP_L, tokens=tokens, trained=False, projector=projector), Tower(model=language))


#: By name, as they are fine-tuned: the image tower frozen, projector and language model trained (H. Liu et al., "Visual
#: Instruction Tuning", 2023, §4.2). LLaVA 1.6 looks at an image whole and in up to four parts. Sizes:
#: huggingface.co/liuhaotian/llava-v1.5-7b, llava-v1.6-34b, openai/clip-vit-large-patch14-336, config.json of each.
KNOWN_TOWERS: Mapping[str, tuple[Tower, ...]] = {
    "llava-1.5-7b": _llava(known("llama2-7b"), 577),
    "llava-1.5-13b": _llava(known("llama2-13b"), 577),
    "llava-1.6-34b": _llava(known("yi-34b"), 5 * 577),
}


def known_towers(name: str) -> tuple[Tower, ...]:
    """The parts of the model of that name, in any case; a model of one part is one that is trained.

    Raises:
        UnknownName: there is none; the nearest names are offered.
    """
    found = KNOWN_TOWERS.get(name.casefold())
    if found is not None:
        return found
    if name.casefold() not in KNOWN:
        raise UnknownName("model", name, [*KNOWN_TOWERS, *KNOWN])
    return (Tower(model=known(name)),)


#: Of an image tower by its architecture: tokens beside those of patches.
_IMAGE_TOKENS = {"clip_vision_model": 1, "siglip_vision_model": 0}


def towers_from_config(config: Mapping[str, Any], name: str = "") -> tuple[Tower, ...]:
    """The parts of the model that a Hugging Face ``config.json`` describes: an image tower and text, or text alone.

    The tower is frozen and its projector, of two layers, trained; ``msgspec.structs.replace`` makes it otherwise.

    Raises:
        UnknownName: an architecture that is not known here.
        BadValue: a size is missing, or is no size.
    """
    image, text = config.get("vision_config"), config.get("text_config")
    if not isinstance(image, Mapping) or not isinstance(text, Mapping):
        return (Tower(model=from_config(config, name)),)
    kind = str(image.get("model_type"))
    if kind not in _IMAGE_TOKENS:
        raise UnknownName("image tower", kind, _IMAGE_TOKENS, next_step="give its sizes by hand")
    side, patch = image.get("image_size"), image.get("patch_size")
    if not (isinstance(side, int) and isinstance(patch, int) and 0 < patch <= side):
        raise BadValue(f"images of {side} in patches of {patch}", why="neither says how many patches there are")
    tokens = (side // patch) ** 2 + _IMAGE_TOKENS[kind]
    like_gpt2 = {
        "model_type": "gpt2", "n_embd": image.get("hidden_size"), "n_layer": image.get("num_hidden_layers"),
        "n_head": image.get("num_attention_heads"), "n_inner": image.get("intermediate_size"),
        "n_positions": tokens + _IMAGE_TOKENS[kind], "vocab_size": 3 * patch * patch,
    }  # fmt: skip
    tower, language = from_config(like_gpt2, kind), from_config(text, name)
    projector = (tower.hidden + 1) * language.hidden + (language.hidden + 1) * language.hidden
    return (Tower(model=tower, tokens=tokens, trained=False, projector=projector), Tower(model=language))


def footprint_of(towers: Sequence[Tower], setup: Setup, memory: int | None = None) -> Footprint:
    """What a model of these parts needs on each rank, in one pipeline stage.

    Raises:
        BadValue: no tower, none that learns, or a pipeline.
    """
    if not any(tower.learns or tower.projector for tower in towers):
        raise BadValue("a model of which nothing is trained", why="there is no step to plan")
    if setup.pipeline > 1:
        raise BadValue("a pipeline of towers", why="how they are divided among its stages is not known here")
    return Footprint((_rank(towers, setup),), memory)


def _rank(towers: Sequence[Tower], setup: Setup) -> Rank:
    learning = False
    states: list[Held] = []
    found: list[dict[Moment, Passing]] = []
    for tower in towers:
        learning = learning or tower.learns
        run = msgspec.structs.replace(setup, sequence=tower.tokens) if tower.tokens else setup
        own = owned(tower.size, run, 0)
        here = held(own, run)
        one = layer(tower.model, run, tower.inputs)
        flying = 1 if learning else 0
        passing = moments(tower.model, run, own, here, one, flying, last=tower is towers[-1])
        states.append(here)
        found.append({each.moment: each for each in passing})
        if not learning:
            # Forward alone: a layer at a time.
            found[-1] = {Moment.BACKWARD: Passing(Moment.BACKWARD), Moment.STEP: found[-1][Moment.STEP]}
        learning = learning or tower.projector > 0
    together = Held(*(sum(parts) for parts in zip(*states, strict=True)))
    return at_the_peak(0, setup, together, list(_together(found, states)))


def _together(found: Sequence[dict[Moment, Passing]], states: Sequence[Held]) -> list[Passing]:
    """The moments of all towers: while one's backward runs, those before it keep all, those after it have gradients."""
    last = found[-1]
    before = sum(each[Moment.BACKWARD].activations for each in found[:-1])
    resident = sum(each[Moment.BACKWARD].gradients for each in found[:-1])
    loss = last[Moment.LOSS]
    every = [loss._replace(activations=loss.activations + before, gradients=loss.gradients + resident)]
    for place, tower in enumerate(found):
        earlier = sum(each[Moment.BACKWARD].activations for each in found[:place])
        held_before = sum(each[Moment.BACKWARD].gradients for each in found[:place])
        later = sum(state.gradients for state in states[place + 1 :])
        every += [
            tower[moment]._replace(
                activations=tower[moment].activations + earlier, gradients=tower[moment].gradients + held_before + later
            )
            for moment in (Moment.BACKWARD, Moment.END)
            if moment in tower
        ]
    steps = [each[Moment.STEP] for each in found]
    every.append(
        Passing(
            Moment.STEP,
            gradients=sum(each.gradients for each in steps),
            temporary=sum(each.temporary for each in steps),
            buffers=sum(each.buffers for each in steps),
        )
    )
    return every
