"""Writes a Hugging Face folder: safetensors weights, plus the source's config and tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch

from holdfast.ckpt.contents import CheckpointContents
from holdfast.ckpt.convert.files import SourceCopy, TargetFile, TargetFiles
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.writers import safetensors, state_dicts

CONFIG = "config.json"
#: Files other than weights that ``save_pretrained`` writes.
_BESIDE = (
    CONFIG,
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.jinja",
    "chat_template.json",
    "*preprocessor_config.json",
    "processor_config.json",
    "spiece.model",
    "sentencepiece*.model",
    "adapter_config.json",
)


def write(contents: CheckpointContents, options: ConvertOptions) -> TargetFiles:
    """Write weight files of at most ``options.shard_bytes``, an index, and the other files."""
    files, losses = safetensors.weight_files(contents, options)
    companions = {
        path: size
        for path, size in contents.files.items()
        if any(fnmatch(path, pattern) for pattern in _BESIDE)
    }
    copies = tuple(
        TargetFile(path, (SourceCopy(path, 0, size),)) for path, size in sorted(companions.items())
    )
    left_out = state_dicts.describe_losses(contents, options, optimizer=False, values=False)
    return TargetFiles(
        (*copies, *files), (*losses, *left_out, *_config_warnings(companions, options))
    )


def _config_warnings(companions: dict[str, int], options: ConvertOptions) -> Iterator[str]:
    if CONFIG not in companions:
        yield "The source has no config.json: add the model's, which from_pretrained requires."
    elif options.dtype:
        yield (
            f"config.json is unchanged: set its dtype to {options.dtype}, or from_pretrained uses "
            "the old one."
        )
