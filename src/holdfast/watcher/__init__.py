"""The watcher: stall detection, wait-for graph, root-cause analysis, stragglers and incidents."""
