"""RecShard: rows of tables split by frequency over the memory of devices and of hosts, by a mixed-integer program."""
