"""Checkpoints of torch.distributed: what many ranks wrote together, or each for itself.

dcp        the reader of torch.distributed.checkpoint: FSDP2, FSDP1 sharded, torchtitan
index      its index, ``.metadata``, read without torch
blobs      small values that stand in files as whole files of torch.save
ours       holdfast's own: the same with a manifest of hashes
megatron   Megatron-LM's ``torch_dist``: the same with plain values apart
hf_shards  safetensors files of one rank each
shards     a file of torch.save of each rank
spread     which part of a whole tensor a rank's own is
"""
