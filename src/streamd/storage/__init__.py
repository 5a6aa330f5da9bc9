"""What a node has on its disk: the log and the state in LevelDB, and the data directory."""
