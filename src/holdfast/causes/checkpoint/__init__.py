"""CKPT: Checkpoints."""
