"""A folder of Hugging Face: weights in safetensors, and the configuration and tokenizer that lay beside the source."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch

from holdfast.actions.conversion.files import Copy, File, Written
from holdfast.actions.conversion.options import Options
from holdfast.actions.conversion.writers import safetensors, state_dicts
from holdfast.facts.checkpoints.contents import Contents

CONFIG = "config.json"
#: What lies beside the weights in a folder that ``save_pretrained`` made, and is no weight.
_BESIDE = (
    CONFIG, "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*",
    "merges.txt", "*.jinja", "chat_template.json", "*preprocessor_config.json", "processor_config.json",
    "spiece.model", "sentencepiece*.model", "adapter_config.json",
)  # fmt: skip


def write(contents: Contents, options: Options) -> Written:
    """The folder: weights in files of ``options.shard_bytes`` at most, their index, and what lay beside the source."""
    files, losses = safetensors.weights(contents, options)
    beside = {path: size for path, size in contents.files.items() if any(fnmatch(path, each) for each in _BESIDE)}
    copies = tuple(File(path, (Copy(path, 0, size),)) for path, size in sorted(beside.items()))
    left_out = state_dicts.left_out(contents, options, optimizer=False, values=False)
    return Written((*copies, *files), (*losses, *left_out, *_about_config(beside, options)))


def _about_config(beside: dict[str, int], options: Options) -> Iterator[str]:
    if CONFIG not in beside:
        yield "The source has no config.json: put the model's own beside the weights, from_pretrained needs it."
    elif options.dtype:
        yield f"config.json is as it was: set its dtype to {options.dtype}, or from_pretrained takes the one it says."
