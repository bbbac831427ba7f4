"""The all-to-all that pooled embeddings go through: measured (`measured`) and modelled (`link_model`)."""
