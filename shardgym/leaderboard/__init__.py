"""Ranked tables from result records."""

from shardgym.leaderboard.boards import Board, load_boards
from shardgym.leaderboard.ranking import BASE, Ranking, Row, rank
from shardgym.leaderboard.tables import render

__all__ = ["BASE", "Board", "Ranking", "Row", "load_boards", "rank", "render"]
