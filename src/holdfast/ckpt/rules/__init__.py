"""Pure rules over the survey of a checkpoint.

completeness  every file exists and is intact; the shards of each tensor cover it
values        NaN, all-zero tensors, replicas that differ
single_save   all files belong to one finished save
verify        all of these combined into one verdict
differences   two checkpoints compared
"""
