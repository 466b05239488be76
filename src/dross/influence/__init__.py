"""Queries of a recorded run: scores, counterfactual runs, verification."""
