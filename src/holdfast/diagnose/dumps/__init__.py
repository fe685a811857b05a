"""Flight-recorder dumps of many ranks: reduce, match calls across ranks, judge."""
