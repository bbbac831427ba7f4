"""MaskablePPO of sb3-contrib with a policy over sets."""
