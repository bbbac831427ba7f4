"""Embedding tables: their records, the ids that look rows up, and where both come from (`pools`, `streams`)."""
