"""SurCo: linear surrogate costs through a differentiable assignment."""
