"""Writers: each maps ``CheckpointContents`` to the files of one format, without any I/O."""
