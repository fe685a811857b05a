"""Checkpoints of DeepSpeed, read without it.

zero       the reader of ZeRO-1, 2 and 3, of any number of ranks
universal  the reader of universal ones: a folder for each parameter
files      which files there are by their names, and what is in each
model      what ``*_model_states.pt`` say: names, shapes, what is tied and frozen
flat       where weights and states stand in ZeRO's flat buffers
share      what one tensor-parallel rank has, put together over its data-parallel ranks
joined     tensor- and pipeline-parallel ranks, put together
whole      what is not there, or is of another save
"""
