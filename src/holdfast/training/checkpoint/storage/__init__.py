"""Checkpoint storage: shard files, storage backends, peer memory, replication."""
