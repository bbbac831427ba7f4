"""Sharding tasks: tables, devices and a batch size; the memory that a step takes; suites of tasks."""
