"""Create a debug bundle with secrets redacted (``holdfast report``)."""
