"""From a file to a better model: read, train, score, suggest, decide, judge, export."""
