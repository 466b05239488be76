"""How cells of a table are shown to a person: on the page, in the report and in lists."""
