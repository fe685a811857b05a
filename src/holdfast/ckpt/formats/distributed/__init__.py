"""Readers for checkpoints of torch.distributed, written by many ranks together or separately.

dcp         torch.distributed.checkpoint: FSDP2, FSDP1 sharded, torchtitan
index       its index, ``.metadata``, parsed without torch
blobs       small values embedded as complete torch.save files
holdfast    holdfast's own: DCP plus a manifest of hashes
megatron    Megatron-LM's ``torch_dist``: DCP plus common.pt
hf_shards   safetensors files of one rank each
rank_files  one torch.save file per rank
dtensor     which part of the full tensor a rank holds
"""
