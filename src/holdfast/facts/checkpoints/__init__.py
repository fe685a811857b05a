"""What lies in checkpoints, of whoever wrote them: their tensors by name and place, without torch and without a copy.

    contents      the neutral form that every format is read into: names, tensors, the pieces of files they stand in
    formats       which format a path is of, and the reader of each: ``read(path)``
    torch_pickle  the pickles inside torch's files, read so that nothing in them runs
    torch_files   files of torch.save: zip archives, and those of before torch 1.6
    pieces        the numbers of a tensor, block by block, from wherever they stand
    kept          holdfast's own folder of checkpoints: which are there, and what is not as it was written

and a file for each other format. A reader looks and never judges: what is missing is told in ``Contents.gaps``.
"""
