"""Checkpoints that are proven whole: ``holdfast.Checkpoint``.

    saver       the class, and what happens in which order
    state       what is saved: of model and optimizer by name, of each rank its own
    plan        which rank writes which piece (torch.distributed.checkpoint's planner), kept from save to save
    engines     DeepSpeed's, which save themselves
    snapshot    a consistent copy in host memory, so that training can go on while it is written
    storage     pieces to files and back: written once, hashed on the way, synced
    rounds      the ranks agree in the job's store, within a limit, and all learn the same
    writing     one save: every rank's files, then the index and the manifest
    commit      the one rename that makes a checkpoint
    loading     one load: every byte proven, what does not fit named, then read
    hashing     the hash of a file without copying it first
    unpickling  torch's index of a checkpoint, read without running what a stranger put into it
    versions    what torch calls differently from version to version

A save works without any collective: a rank that dies or is late ends it for all, within a limit, and breaks no group.
"""

from __future__ import annotations
