"""Recording a run: the loop of `dross.train`, and loops of the user's own."""
