"""The review page: look at what may do harm, decide, and see what the decisions are worth."""
