"""Readers for DeepSpeed checkpoints, without DeepSpeed.

zero            ZeRO-1, 2 and 3, any number of ranks
universal       universal checkpoints: one folder per parameter
files           which files exist, by name, and their content
model           ``*_model_states.pt``: names, shapes, ties, frozen parameters
flat            where weights and states are stored in ZeRO's flat buffers
data_parallel   merges the data-parallel ranks of one model-parallel rank
model_parallel  merges tensor- and pipeline-parallel ranks
completeness    what is missing, or from another save
"""
