"""When an environment whose episode has ended begins the next one."""

from __future__ import annotations

from gymnasium.vector import AutoresetMode

from shardgym.errors import UnknownNameError


def autoreset_mode(given: str | AutoresetMode) -> AutoresetMode:
    """Return the mode named "NextStep", "SameStep" or "Disabled"; raises `UnknownNameError` for other names."""
    if isinstance(given, AutoresetMode):
        return given
    modes = {mode.value: mode for mode in AutoresetMode}
    if not isinstance(given, str) or given not in modes:
        raise UnknownNameError("autoreset_mode", given, modes)
    return modes[given]
