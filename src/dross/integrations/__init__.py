"""dross inside other libraries: one thin module each, never imported by dross itself."""
