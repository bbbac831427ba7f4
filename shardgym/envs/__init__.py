"""Gymnasium environments over sharding tasks."""
