"""The page of boards: one HTML file that needs no network."""

from shardgym.leaderboard.page.page import render_page

__all__ = ["render_page"]
