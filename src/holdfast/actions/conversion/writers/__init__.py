"""Writers: each turns ``Contents`` into the files of one format, without reading a tensor or touching the disk."""
