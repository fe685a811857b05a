"""The public API inside training code: collectives, evaluation, checkpoints, loop, sinks."""
