"""Checkpoints: ``holdfast.Checkpoint``.

    checkpoint         the public class and the order of its operations
    manager            replication, retention and lookup of committed checkpoints
    state              what is saved: model and optimizer tensors by name, each rank's own state
    write_plan         which rank writes which shard (torch.distributed.checkpoint's planner)
    deepspeed_engines  DeepSpeed engines, which save themselves
    snapshot           a copy in host memory, so that training continues during the write
    storage            shard files, storage backends, peer memory, replication
    store_agreement    the ranks agree through the job's store, with a timeout
    writing            one save: every rank's files, then the index and the manifest
    commit             the rename that commits a checkpoint
    loading            one load: verify every byte, report mismatches, then read
    unpickling         read torch's checkpoint index without executing its contents
    torch_versions     names that differ between torch versions

A save uses no collective: if a rank dies or is late, the save fails on all ranks after the timeout
and breaks no process group.
"""

from __future__ import annotations
