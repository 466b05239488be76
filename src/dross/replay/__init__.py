"""Running a tape again, exactly as it was."""
