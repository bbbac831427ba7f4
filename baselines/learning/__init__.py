"""What learned solvers share: tables as features, set encoders, the training loop, and files of weights with a card."""
