"""Pure rules over the survey of a checkpoint.

completeness  every file exists and is intact; the shards of each tensor cover it
values        NaN, huge values, replicas that differ
zeros         weights, shards, pages and rows of zeros
single_save   all files belong to one finished save
verify        all of these combined into one verdict
differences   two checkpoints compared
"""
