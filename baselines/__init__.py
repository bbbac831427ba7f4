"""Solvers to compare with: random placement and the greedy heuristics of the literature."""
