"""Frameworks that have a loop of their own: what ``holdfast.loop`` does, as their callbacks.

    transformers   HoldfastCallback for Hugging Face's Trainer
    lightning      HoldfastCallback, and a loader that knows its position

The frameworks save in their own formats. A manifest in each checkpoint's folder proves it whole, and ``newest`` gives
the newest one that is. With Accelerate, ``holdfast.loop`` takes the prepared loader, and needs no callback.
"""

from __future__ import annotations

from holdfast.runtime.callbacks.sealed import newest, seal

__all__ = ["newest", "seal"]
