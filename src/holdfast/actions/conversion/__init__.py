"""Converts checkpoints: every format is read into one neutral form (facts.checkpoints), and written from it.

files     what a writer answers with: files as a list of parts, literal bytes and runs of tensors
pickles   the pickles in torch's files, made without torch
archives  files of torch.save as parts
names     what becomes of names: wrappers taken off, the user's own maps, collisions named
writing   writes the parts: streaming, resumable, into a staged folder that gets its name last
proving   reads back what was written and holds it against the source, bit by bit
converting the recipe
writers/  a file for each format that is written: pure, from ``Contents`` to ``Written``
"""
