"""What can be asked of a recorded run: scores, counterfactual runs, verification."""
