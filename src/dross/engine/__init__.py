"""The mathematics: one training step as a pure function, with its adjoint and its tangent."""
