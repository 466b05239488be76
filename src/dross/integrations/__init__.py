"""dross inside other people's trainers: one module per library, imported only when asked for."""
