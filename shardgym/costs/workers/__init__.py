"""Child processes that measure: started with their own environment, watched, and replaced when they fail."""
