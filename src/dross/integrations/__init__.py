"""dross inside other libraries: one thin module each, imported only when asked for."""
