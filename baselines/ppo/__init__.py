"""Policies over sets of devices, trained by MaskablePPO of sb3-contrib or by groups of episodes."""
