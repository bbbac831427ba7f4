"""Ids: how they are distributed, drawn, recorded and counted."""
