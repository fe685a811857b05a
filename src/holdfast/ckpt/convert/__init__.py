"""Converts checkpoints: any format is read into the neutral form and written from it.

pipeline       the conversion, step by step
options        options of the target
targets        which formats can be written, and by which module
names          wrapper removal, the user's name maps, collisions
writers/       one writer per format: pure, from ``CheckpointContents`` to ``TargetFiles``
files          target files as lists of parts: literal bytes and tensor ranges
pickles        torch's pickles, generated without torch
archives       torch.save files as parts
archive_frame  zip headers and directory of an archive
crc            CRC32 of a record whose segments were written separately
layout         target files cut into segments that can be written in any order
writing        writes segments with several threads
journal        segments already on disk, so that an interrupted conversion resumes
staging        the temporary folder that becomes the target; space and path checks
verification   reads the target back and compares it with the source, bit by bit
"""
