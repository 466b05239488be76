"""Recording a run: our own loop, and anybody else's."""
