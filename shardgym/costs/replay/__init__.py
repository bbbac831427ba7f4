"""Streams of ids replayed through plans."""
