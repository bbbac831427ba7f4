"""Baseline solvers: rules, exact methods, local searches, and learned methods of the literature."""
