"""Readers for checkpoints of any framework, without torch and without copying tensor data.

    registry      detects the format of a path and calls its reader
    frameworks/   single frameworks: torch.save, Hugging Face, Lightning, Accelerate
    distributed/  torch.distributed's formats
    deepspeed/    DeepSpeed's formats

Readers report what is missing in ``CheckpointContents.problems``; they do not judge it.
"""
