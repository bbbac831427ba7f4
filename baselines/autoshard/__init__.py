"""AutoShard (Zha et al., KDD 2022): a recurrent policy trained by actors and a learner."""
