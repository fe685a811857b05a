"""Files that hold tensors, from anybody: what they describe is read, their numbers stay where they are.

torch_files        torch.save's zip archives
torch_legacy       those of before torch 1.6
torch_pickle       the pickles in them, read so that nothing runs
torch_names        which names such a pickle may have
unfolding          how large a value of a pickle becomes
safetensors_files  a header in JSON, then numbers
weight_files       the files of one model's weights in a folder
"""
