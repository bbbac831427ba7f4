"""Native vector environments: many episodes as arrays, stepped together."""
