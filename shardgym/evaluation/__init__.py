"""Running solvers on suites, keeping the results, and checking them."""
