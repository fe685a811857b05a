"""Converts checkpoints: every format is read into one neutral form (facts.checkpoints), and written from it.

files     what a writer answers with: files as a list of parts, literal bytes and runs of tensors
options   how the target is to be
pickles   the pickles in torch's files, made without torch
archives  files of torch.save as parts
frames    what stands between and after an archive's records
sums      the CRC32 of a record whose parts were written apart
names     what becomes of names: wrappers taken off, the user's own maps, collisions named
targets   which formats are written, by which module
layout    files cut into stretches, which are written in any order
writing   writes them: streamed, by several threads
journal   what is on the disk already, so that a conversion goes on where it was cut off
staging   the folder beside the target that gets its name last; room, and where no target may be
proving   reads back what was written and holds it against the source, bit by bit
converting the recipe
writers/  a file for each format that is written: pure, from ``Contents`` to ``Written``
"""
