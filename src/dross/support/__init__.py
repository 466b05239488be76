"""Small tools that every other folder may use: progress, files, charts, pages."""
