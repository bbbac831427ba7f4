"""Rows of every table in tiers by how likely they are: held by all devices, by one of each node, and by one."""
