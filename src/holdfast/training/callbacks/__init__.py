"""Callbacks that add ``holdfast.loop``'s features to frameworks with their own loop.

    transformers   HoldfastCallback for Hugging Face's Trainer
    lightning      HoldfastCallback, and a loader with a saved position

The frameworks save in their own formats. A manifest in each checkpoint folder makes it verifiable,
and ``newest`` returns the newest valid one. Accelerate needs no callback: ``holdfast.loop`` accepts
the prepared loader.
"""

from __future__ import annotations

from holdfast.training.callbacks.verified_checkpoints import newest, seal

__all__ = ["newest", "seal"]
