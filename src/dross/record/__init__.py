"""Recording a run: the loop of `dross.train`, and the user's own loops."""
