"""The `shardgym` command."""
