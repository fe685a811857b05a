"""Readers of untrusted tensor files: metadata is parsed, tensor data stays on disk.

torch_files        torch.save zip archives
torch_legacy       files from before torch 1.6
torch_pickle       their pickles, parsed without executing anything
pickle_names       which names such a pickle may reference
expansion_limit    how large a pickled value becomes when traversed
safetensors_files  a JSON header, then tensor data
weight_files       the weight files of one model in a folder
unreadable_files   problems reported for files that cannot be read
"""
