"""`dross clean`: read, split, search, train and record, score, verify, suggest, report.

If it is stopped, the next call goes on from there.
"""
