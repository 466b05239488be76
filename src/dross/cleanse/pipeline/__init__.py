"""`dross clean`: read, split, search, train and record, score, verify, suggest, report.

Whatever stops it, it goes on from there.
"""
