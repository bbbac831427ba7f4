"""DreamShard (Zha et al., NeurIPS 2022): a policy trained in an MDP that a cost network estimates."""
