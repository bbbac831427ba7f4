"""DreamShard (Zha et al., NeurIPS 2022): a policy trained in the decision process that a cost network estimates."""
