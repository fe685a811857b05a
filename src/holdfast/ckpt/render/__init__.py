"""Terminal output of the ``holdfast ckpt`` commands."""
