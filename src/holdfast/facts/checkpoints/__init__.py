"""What lies in checkpoints, of whoever wrote them: their tensors by name and place, without torch and without a copy.

    contents      the neutral form that every format is read into: names, tensors, the pieces of files they stand in
    formats       which format a path is of, and the reader of each: ``read(path)``
    pieces        the numbers of a tensor, block by block, from wherever they stand
    kept          holdfast's own folder of checkpoints: which are there, and what is not as it was written
    files/        files that hold tensors: torch's, with pickles in them, and safetensors
    state_dicts/  what is what in nested dicts of tensors
    frameworks/   readers of what single frameworks save: torch.save, Hugging Face, Lightning, Accelerate
    distributed/  readers of torch.distributed's formats
    deepspeed/    readers of DeepSpeed's
    examining/    whether one is whole and of one save, and what differs between two

A reader looks and never judges: what is missing is told in ``Contents.gaps``.
"""
