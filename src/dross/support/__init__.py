"""Small tools that everything else may use: progress, files, charts, pages."""
