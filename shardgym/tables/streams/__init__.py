"""Streams of ids: recorded in files or drawn, their batches, and what is counted in them; tables made of them.

`open_stream` reads a file, `DrawnStream` draws. `shardgym.tables.ids` reads recorded ids through this package, so that
its modules are imported by name and nothing is imported here.
"""
