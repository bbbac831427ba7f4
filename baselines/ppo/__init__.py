"""PPO and MaskablePPO with a policy over sets, through stable-baselines3."""
